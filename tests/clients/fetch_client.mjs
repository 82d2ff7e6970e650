// A client of the shape that the TypeScript package of version 0.2 has: plain fetch, `{}` and a content type on every call, and
// a reader of event streams that forgets the event's name between two reads. Runs on Node 20 or later.
//
//     fetch_client.mjs URL KEY

import assert from "node:assert/strict";

const [url, key] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };

async function call(method, path, body) {
  const answer = await fetch(url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data.error), { status: answer.status, code: data.error_code });
  return data;
}

class Session {
  constructor(info) {
    Object.assign(this, info);
    this.path = `/v1/sessions/${info.id}`;
  }

  static async create(options = {}) {
    return new Session(await call("POST", "/v1/sessions", options));
  }

  exec(cmd, options = {}) {
    return call("POST", `${this.path}/exec`, { cmd, ...options });
  }

  // Each read is taken apart by itself: an event that is cut in two between its name and its data is lost.
  async *execStream(cmd, options = {}) {
    const answer = await fetch(`${url}${this.path}/exec/stream`, { method: "POST", headers, body: JSON.stringify({ cmd, ...options }) });
    if (!answer.ok) throw new Error((await answer.json()).error);
    assert.equal(answer.headers.get("x-accel-buffering"), "no");
    assert.equal(answer.headers.get("content-encoding"), null);
    const decoder = new TextDecoder();
    const reader = answer.body.getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      let event = "";
      for (const line of lines) {
        if (line.startsWith("event: ")) event = line.slice(7).trim();
        else if (line.startsWith("data: ") && event) yield { event, ...JSON.parse(line.slice(6)) };
      }
    }
  }

  write(path, content) {
    const body = typeof content === "string" ? { path, text: content } : { path, content_base64: Buffer.from(content).toString("base64") };
    return call("POST", `${this.path}/fs/write`, body);
  }

  async read(path, maxBytes) {
    const more = maxBytes === undefined ? "" : `&max_bytes=${maxBytes}`;
    const data = await call("GET", `${this.path}/fs/read?path=${encodeURIComponent(path)}${more}`);
    return { ...data, content: Buffer.from(data.content_base64, "base64") };
  }

  async upload(name, content, path) {
    const form = new FormData();
    if (path) form.append("path", path);
    form.append("file", new Blob([content]), name);
    const answer = await fetch(`${url}${this.path}/fs/upload`, { method: "POST", headers: { Authorization: headers.Authorization }, body: form });
    assert.equal(answer.status, 200, await answer.clone().text());
    return (await answer.json()).paths;
  }

  info = () => call("GET", this.path);
  stats = () => call("GET", `${this.path}/stats`);
  destroy = () => call("DELETE", this.path);
}

async function refused(promise, status, code) {
  const error = await promise.then(() => assert.fail("it worked"), (error) => error);
  assert.deepEqual([error.status, error.code], [status, code], error.message);
}

async function execs(session) {
  const result = await session.exec("cd /tmp; export A=1; echo out; echo err >&2; (exit 3)");
  assert.deepEqual([result.exit_code, result.cwd, result.output, result.truncated], [3, "/tmp", "out\nerr\n", false]);
  assert.equal((await session.exec("pwd; echo $A", { timeout_ms: 5000 })).output, "/tmp\n1\n");
  assert.equal((await session.exec("test -t 1 && echo tty", { raw_output: true })).output, "tty\r\n");
  assert.equal((await session.exec("sleep 60", { timeout_ms: 500 })).exit_code, 124);
}

async function streams(session) {
  // In a longer burst a read can end within an event, whoever wrote it how: this reader has to lose it then.
  for (const cmd of ["seq 2000", "for i in $(seq 40); do echo line $i; sleep 0.01; done", "for i in $(seq 300); do printf 'é%s\\u2028 ' $i; done"]) {
    const whole = (await session.exec(cmd)).output;
    let text = "", last;
    for await (const event of session.execStream(cmd)) {
      last = event;
      if (event.event === "chunk") text += event.chunk;
    }
    assert.equal(text, whole, cmd);
    assert.deepEqual([last.event, last.exit_code], ["done", 0], cmd);
  }
}

async function files(session) {
  assert.deepEqual(await session.write("a/text.txt", "text é\n"), { ok: true });
  assert.equal((await session.read("a/text.txt")).content.toString(), "text é\n");
  for (const empty of ["", new Uint8Array()]) {
    await session.write("empty", empty);
    assert.equal((await session.read("empty")).content.length, 0);
  }
  const bytes = Uint8Array.from({ length: 100_000 }, (_, i) => i % 256);
  await session.write("bytes", bytes);
  const part = await session.read("bytes", 1000);
  assert.deepEqual([part.truncated, part.content.equals(Buffer.from(bytes.slice(0, 1000)))], [true, true]);
  assert.deepEqual(await session.upload("up.bin", bytes, "/workspace/in"), ["/workspace/in/up.bin"]);
  assert.ok((await session.read("in/up.bin")).content.equals(Buffer.from(bytes)));
  assert.deepEqual(await session.upload('we"ird é.txt', "x"), ['/workspace/we"ird é.txt']);
  await refused(session.read("missing"), 404, "FILE_NOT_FOUND");
  await refused(session.read("a"), 400, "IS_A_DIRECTORY");
}

async function workspaces() {
  const id = "fetch-client";
  const session = await Session.create({ workspace_id: id });
  assert.equal(session.workspace_id, id);
  await session.exec("echo kept > kept");
  await session.destroy();
  const all = await call("GET", "/v1/workspaces");
  assert.ok(all.workspaces.some((workspace) => workspace.id === id));
  const listing = await call("GET", `/v1/workspaces/${id}/fs?path=.`);
  assert.deepEqual(listing.entries.map((entry) => [entry.name, entry.is_dir]), [["kept", false]]);
  const content = await call("GET", `/v1/workspaces/${id}/fs/read?path=kept`);
  assert.equal(Buffer.from(content.content_base64, "base64").toString(), "kept\n");
  assert.deepEqual(await call("DELETE", `/v1/workspaces/${id}`), { ok: true });
}

const session = await Session.create();
assert.equal(session.status, "running");
const list = await call("GET", "/v1/sessions");
assert.ok(Array.isArray(list) && list.some((entry) => entry.id === session.id));
assert.equal((await session.info()).id, session.id);
await execs(session);
await streams(session);
await files(session);
assert.ok((await session.stats()).memory_limit > 0);
assert.deepEqual(await session.destroy(), { ok: true });
assert.deepEqual(await session.destroy(), { ok: true });
await refused(session.exec("true"), 410, "SESSION_DESTROYED");
await refused(call("GET", "/v1/sessions/no-such-session"), 404, "SESSION_NOT_FOUND");
await workspaces();
console.log("every call gave what it should");
