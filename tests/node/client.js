// A client of the early Node dialect, for tests/e2e/test_node_client.py: the token goes as a header and as the WebSocket
// subprotocol bearer.TOKEN, and the calls are /api/v1/sandbox/create, list, ID and ID/connect. It runs through what that
// SDK does and prints what it found as one JSON object.
//
//   node client.js BASE_URL ID [TOKEN]

import WebSocket from "ws";

const [base, id, token] = process.argv.slice(2);

async function rest(method, path, body) {
  const headers = { "Content-Type": "application/json", "X-Project-ID": "project-7" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(base + path, { method, headers, body: body && JSON.stringify(body) });
  const envelope = await response.json();
  if (envelope.code !== 0) throw new Error(`${envelope.code}: ${envelope.message}`);
  return envelope.data;
}

async function untilActive(sandboxId) {
  for (;;) {
    const info = await rest("GET", `/api/v1/sandbox/${sandboxId}`);
    if (info.status === "active") return info;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

class Session {
  constructor(ws) {
    this.ws = ws;
    this.nextId = 1;
    this.calls = new Map();
    this.closed = new Promise((resolve) => ws.once("close", resolve));
    ws.on("message", (raw) => this.route(JSON.parse(raw.toString())));
  }

  static open(path, protocols) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const ws = new WebSocket(base.replace(/^http/, "ws") + path, protocols, { headers });
    return new Promise((resolve, reject) => {
      ws.once("open", () => resolve(new Session(ws)));
      ws.once("error", reject);
    });
  }

  route(message) {
    if (message.method) {
      this.calls.get(message.params?.id)?.events.push(message);
      return;
    }
    const call = this.calls.get(message.id);
    this.calls.delete(message.id);
    if (!call) return;
    if (message.error) call.reject(Object.assign(new Error(message.error.message), { code: message.error.code }));
    else call.resolve({ result: message.result, events: call.events });
  }

  call(method, params) {
    const requestId = this.nextId++;
    return new Promise((resolve, reject) => {
      this.calls.set(requestId, { resolve, reject, events: [] });
      this.ws.send(JSON.stringify({ jsonrpc: "2.0", method, params, id: requestId }));
    });
  }
}

const text = (promise) => promise.then(() => "", (error) => error.message);

const created = (await rest("POST", "/api/v1/sandbox/create", { user_id: "ann", labels: { team: "red" } })).sandbox;
const active = await untilActive(created.id);
const listed = await rest("POST", "/api/v1/sandbox/list", {});
const session = await Session.open(`/api/v1/sandbox/${active.id}/connect`, [`bearer.${token || "anything"}`]);

const printed = await session.call("exec", { command: "head -c 524289 /dev/zero | tr '\\0' x" });
const streamed = printed.events
  .filter((event) => event.method === "exec.stdout")
  .reduce((length, event) => length + event.params.data.length, 0);
const both = await session.call("exec", { command: "echo out; sleep 0.05; echo err >&2; exit 3" });
const stopped = await rest("POST", `/api/v1/sandbox/${active.id}/stop`, {});
const refused = await session.call("exec", { command: "true" }).then(() => 0, (error) => error.code);
await rest("POST", `/api/v1/sandbox/${active.id}/start`, {});
const again = await session.call("exec", { command: "echo again" });
const report = {
  created,
  items: listed.items.map((item) => item.id),
  pagination: listed.pagination,
  protocol: session.ws.protocol,
  output: printed.result.output.length,
  truncated: printed.result.truncated,
  streamed,
  kinds: both.events.map((event) => event.method),
  exitCode: both.result.exit_code,
  stopped: stopped.status,
  refused,
  again: again.result.output,
  another: await text(rest("GET", "/api/v1/sandbox/another")),
  update: await text(rest("PATCH", `/api/v1/sandbox/${active.id}`, { image: "new" })),
  rolling: await text(rest("POST", "/admin/rolling/start", { image: "new" })),
  pool: await rest("GET", "/admin/pool/status"),
  deleted: (await rest("DELETE", `/api/v1/sandbox/${id}`)).status,
  closeCode: await session.closed,
};
console.log(JSON.stringify(report));
