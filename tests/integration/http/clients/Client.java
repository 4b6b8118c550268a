import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.zip.GZIPOutputStream;

/** Java's own client as it comes: it offers h2c with every request. */
public class Client {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static final String JSON = "application/json", LINES = "application/x-ndjson";
    static String service;

    public static void main(String[] arguments) throws Exception {
        service = arguments[0];
        byte[] query = bytes("{\"queries\": [\"tent\"], \"top_k\": 1}");
        byte[] lines = bytes("{\"id\": \"first\", \"text\": \"a\"}\n{\"id\": \"second\", \"text\": \"b\"}\n");
        byte[] large = new byte[Integer.parseInt(arguments[1])];
        show("predict", "POST", "/predict", JSON, "", whole(query));
        show("chunked", "POST", "/predict", JSON, "", chunked(query));
        show("gzip", "POST", "/predict", JSON, "gzip", whole(gzip(query)));
        show("stream", "POST", "/labels", LINES, "", chunked(lines));
        show("gzip stream", "POST", "/labels", LINES, "gzip", chunked(gzip(lines)));
        show("admin", "POST", "/admin/reload", JSON, "", whole(bytes("{\"bundle\": \"missing\"}")));
        show("get", "GET", "/labels/first", JSON, "", BodyPublishers.noBody());
        show("delete", "DELETE", "/labels/first", JSON, "", BodyPublishers.noBody());
        show("too large", "POST", "/predict", JSON, "", whole(large));
        show("again", "POST", "/predict", JSON, "", whole(query));
    }

    static void show(
            String name, String method, String path, String type, String coding, BodyPublisher body)
            throws Exception {
        HttpRequest.Builder request =
                HttpRequest.newBuilder(URI.create(service + path))
                        .header("Content-Type", type)
                        .method(method, body);
        if (!coding.isEmpty()) request.header("Content-Encoding", coding);
        HttpResponse<byte[]> answer = CLIENT.send(request.build(), BodyHandlers.ofByteArray());
        String content = Base64.getEncoder().encodeToString(answer.body());
        System.out.println(name + "\t" + answer.statusCode() + "\t" + content);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static BodyPublisher whole(byte[] content) {
        return BodyPublishers.ofByteArray(content);
    }

    static BodyPublisher chunked(byte[] content) {
        return BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(content));
    }

    static byte[] gzip(byte[] content) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        try (GZIPOutputStream zip = new GZIPOutputStream(out)) {
            zip.write(content);
        }
        return out.toByteArray();
    }
}
