// Node's own client as it comes: fetch.
import { gzipSync } from "node:zlib";

const [service, size] = process.argv.slice(2);
const json = "application/json";
const lines = "application/x-ndjson";

async function show(name, method, path, type, coding, body) {
  const headers = { "content-type": type };
  if (coding) headers["content-encoding"] = coding;
  const answer = await fetch(service + path, { method, headers, body, duplex: "half" });
  const content = Buffer.from(await answer.arrayBuffer()).toString("base64");
  console.log(`${name}\t${answer.status}\t${content}`);
}

// A stream whose length the client does not know.
const chunked = (content) => new Blob([content]).stream();

const query = '{"queries": ["tent"], "top_k": 1}';
const labels = '{"id": "first", "text": "a"}\n{"id": "second", "text": "b"}\n';
await show("predict", "POST", "/predict", json, "", query);
await show("chunked", "POST", "/predict", json, "", chunked(query));
await show("gzip", "POST", "/predict", json, "gzip", gzipSync(query));
await show("stream", "POST", "/labels", lines, "", chunked(labels));
await show("gzip stream", "POST", "/labels", lines, "gzip", chunked(gzipSync(labels)));
await show("admin", "POST", "/admin/reload", json, "", '{"bundle": "missing"}');
await show("get", "GET", "/labels/first", json, "");
await show("delete", "DELETE", "/labels/first", json, "");
await show("too large", "POST", "/predict", json, "", new Uint8Array(Number(size)));
await show("again", "POST", "/predict", json, "", query);
