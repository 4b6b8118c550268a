// Go's own client as it comes.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

const (
	typeJSON  = "application/json"
	typeLines = "application/x-ndjson"
)

var service = os.Args[1]

func main() {
	query := []byte(`{"queries": ["tent"], "top_k": 1}`)
	lines := []byte("{\"id\": \"first\", \"text\": \"a\"}\n{\"id\": \"second\", \"text\": \"b\"}\n")
	size, err := strconv.Atoi(os.Args[2])
	check(err)
	show("predict", "POST", "/predict", typeJSON, "", bytes.NewReader(query))
	show("chunked", "POST", "/predict", typeJSON, "", chunked(query))
	show("gzip", "POST", "/predict", typeJSON, "gzip", bytes.NewReader(zipped(query)))
	show("stream", "POST", "/labels", typeLines, "", chunked(lines))
	show("gzip stream", "POST", "/labels", typeLines, "gzip", chunked(zipped(lines)))
	show("admin", "POST", "/admin/reload", typeJSON, "", bytes.NewReader([]byte(`{"bundle": "missing"}`)))
	show("get", "GET", "/labels/first", typeJSON, "", nil)
	show("delete", "DELETE", "/labels/first", typeJSON, "", nil)
	show("too large", "POST", "/predict", typeJSON, "", bytes.NewReader(make([]byte, size)))
	show("again", "POST", "/predict", typeJSON, "", bytes.NewReader(query))
}

func show(name, method, path, kind, coding string, body io.Reader) {
	request, err := http.NewRequest(method, service+path, body)
	check(err)
	request.Header.Set("Content-Type", kind)
	if coding != "" {
		request.Header.Set("Content-Encoding", coding)
	}
	answer, err := http.DefaultClient.Do(request)
	check(err)
	content, err := io.ReadAll(answer.Body)
	check(err)
	fmt.Printf("%s\t%d\t%s\n", name, answer.StatusCode, base64.StdEncoding.EncodeToString(content))
}

// A reader whose length the client does not know.
func chunked(content []byte) io.Reader {
	return io.MultiReader(bytes.NewReader(content))
}

func zipped(content []byte) []byte {
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	_, err := writer.Write(content)
	check(err)
	check(writer.Close())
	return out.Bytes()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
