// Uses the types that openapi-typescript made: checked by `tsc --strict`, and run: ADDRESS KEY.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.d.ts";

type Session = components["schemas"]["Session"];
type ErrorCode = components["schemas"]["ErrorCode"];

const [baseUrl, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

function must(holds: boolean, what: unknown): void {
  if (!holds) throw new Error(JSON.stringify(what));
}

async function withSession(use: (session: Session) => Promise<void>): Promise<void> {
  const made = await client.POST("/v1/sessions", { body: { ttl_seconds: 600, name: "typed" } });
  if (made.data === undefined) throw new Error(made.error.message);
  const params = { path: { id: made.data.id } };
  try {
    await use(made.data);
  } finally {
    await client.DELETE("/v1/sessions/{id}", { params });
  }
}

await withSession(async (session) => {
  const params = { path: { id: session.id } };
  const done = await client.POST("/v1/sessions/{id}/exec", { params, body: { cmd: "echo hello" } });
  const output: string | undefined =
    done.data !== undefined && "output" in done.data ? done.data.output : undefined;
  must(output === "hello\n", done);

  const stream = await client.POST("/v1/sessions/{id}/exec/stream", {
    params, body: { cmd: "echo streamed", on_disconnect: "cancel" }, parseAs: "text",
  });
  must(stream.data?.includes("event: done\n") ?? false, stream);

  const bytes = new Uint8Array([0, 1, 254, 255]);
  const put = await client.PUT("/v1/sessions/{id}/fs/file", {
    params: { ...params, query: { path: "bytes" } },
    headers: { "Content-Type": "application/octet-stream" },
    body: "", bodySerializer: () => bytes,
  });
  must(put.data?.ok === true, put);
  const got = await client.GET("/v1/sessions/{id}/fs/file", {
    params: { ...params, query: { path: "bytes" }, header: { Range: "bytes=2-3" } },
    parseAs: "arrayBuffer",
  });
  must(new Uint8Array(got.data!).join() === "254,255", got);

  const missing = await client.GET("/v1/sessions/{id}/fs/read", {
    params: { ...params, query: { path: "no such file" } },
  });
  const code: ErrorCode | undefined = missing.error?.error_code;
  must(code === "FILE_NOT_FOUND", missing);
});
console.log("all of it works");
