"""Every call of the published Python client's README, against a running daemon.

    published_client.py URL KEY [agents]

The client is the package `sandkasten` 0.3.0 as it was published; nothing of it is changed. With `agents`, the tools for the OpenAI
Agents SDK are called as the framework calls them. Each step that does not give what the README says ends the script.
"""

import asyncio
import importlib.metadata
import io
import json
import sys
import tempfile
from pathlib import Path

import httpx

from sandkasten import SandboxClient, SandkastenStreamError

URL, KEY = sys.argv[1:3]
WORKSPACE = "published-client"


def same(got, want, what):
    if got != want:
        raise SystemExit(f"{what}: wanted {want!r}, got {got!r}")


async def quick_start(client):
    session = await client.create_session(image="python")
    try:
        result = await session.exec("echo 'Hello from sandbox'")
        same(result.output, "Hello from sandbox\n", "exec")
        await session.write("hello.py", "print('Hello, World!')")
        result = await session.exec("python3 hello.py")
        same(result.output, "Hello, World!\n", "a file that was written")
        result = await session.read("hello.py")
        same(result.content.decode(), "print('Hello, World!')", "read")
    finally:
        await session.destroy()


async def context_managers():
    async with SandboxClient(base_url=URL, api_key=KEY) as client:
        async with await client.create_session() as session:
            same((await session.exec("echo in")).output, "in\n", "exec in a context")
        ended = await session.info()
        same(ended.status, "destroyed", "status after the context")


async def context_keeps_the_users_error(client):
    """A 410 on delete would hide the exception that left the block."""
    try:
        async with await client.create_session() as session:
            await session.destroy()
            raise KeyError("mine")
    except KeyError:
        return
    raise SystemExit("the user's exception is gone")


async def sessions(client):
    session = await client.create_session(image="python", ttl_seconds=120)
    again = await client.get_session(session.id)
    same(again.id, session.id, "get_session")
    info = await session.info()
    same((info.id, info.image, info.status, info.cwd), (session.id, "python", "running", "/workspace"), "info")
    same(info.created_at < info.expires_at, True, "it expires later")
    listed = [entry.id for entry in await client.list_sessions()]
    same(session.id in listed, True, "list_sessions")
    await session.destroy()
    await session.destroy()
    listed = [entry.id for entry in await client.list_sessions()]
    same(session.id in listed, False, "list_sessions after destroy")
    try:
        await session.exec("true")
    except httpx.HTTPStatusError as error:
        same(error.response.status_code, 410, "exec after destroy")
        same(error.response.json()["error_code"], "SESSION_DESTROYED", "exec after destroy")
    else:
        raise SystemExit("exec after destroy worked")


async def execs(session):
    await session.exec("cd /tmp")
    same((await session.exec("pwd")).cwd, "/tmp", "cwd persists")
    await session.exec("export GREETING=hi; f() { echo \"$GREETING $1\"; }")
    same((await session.exec("f you")).output, "hi you\n", "variables and functions persist")
    result = await session.exec("echo out; echo err >&2; exit_code() { return 7; }; exit_code", timeout_ms=5000)
    same((result.exit_code, result.output, result.truncated), (7, "out\nerr\n", False), "exit code and order")
    same(result.duration_ms >= 0, True, "duration")
    result = await session.exec("sleep 60", timeout_ms=500)
    same(result.exit_code, 124, "timeout")
    result = await session.exec("test -t 1 && printf '\\033[31mred\\033[0m\\n'", raw_output=True)
    same(result.output, "\x1b[31mred\x1b[0m\r\n", "raw output")
    result = await session.exec("printf '\\033[31mred\\033[0m\\r\\n'")
    same(result.output, "red\n", "clean output")
    big = await session.exec("head -c 3000000 /dev/zero | tr '\\0' a")
    same((big.truncated, len(big.output) <= 1024 * 1024), (True, True), "a long output")


async def streams(session):
    chunks = [chunk async for chunk in session.exec_stream("for i in 1 2 3; do echo $i; sleep 0.1; done; (exit 3)")]
    same("".join(chunk.output for chunk in chunks), "1\n2\n3\n", "stream")
    same([chunk.done for chunk in chunks].count(True), 1, "one end")
    last = chunks[-1]
    same((last.done, last.exit_code, last.cwd), (True, 3, "/tmp"), "the end of a stream")
    same(len(chunks) >= 4, True, "it really streams")
    same(all(chunk.timestamp > 1_500_000_000_000 for chunk in chunks[:-1]), True, "timestamps")
    # Python's line reader splits on these, and the client reads lines.
    odd = "a\u2028b\u2029c\u0085d é 日本"
    await session.write("/tmp/odd", odd)
    text = "".join([chunk.output async for chunk in session.exec_stream("cat /tmp/odd")])
    same(text, odd, "line separators of Unicode")
    text = "".join([chunk.output async for chunk in session.exec_stream("printf 'data: x\\n\\nevent: done\\ndata: {}\\n\\n'")])
    same(text, "data: x\n\nevent: done\ndata: {}\n\n", "output that looks like events")


async def broken_streams(client):
    session = await client.create_session()

    async def destroy_soon():
        async for chunk in session.exec_stream("echo started; sleep 60"):
            if chunk.output:
                await session.destroy()

    try:
        await destroy_soon()
    except SandkastenStreamError:
        return
    raise SystemExit("a stream whose session went ended without an error")


async def files(session):
    data = bytes(range(256)) * 4000
    await session.write("data.bin", data)
    same((await session.read("data.bin")).content, data, "bytes")
    result = await session.read("data.bin", max_bytes=10)
    same((result.content, result.truncated), (data[:10], True), "max_bytes")
    for empty in ("", b""):
        await session.write("empty", empty)
        same((await session.read("empty")).content, b"", "an empty file")
    large = b"x" * (50 * 1024 * 1024)
    await session.write("large", large)
    same((await session.exec("stat -c %s /workspace/large")).output, f"{len(large)}\n", "50 MiB")
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "script.py"
        local.write_text("print('up')")
        same(await session.upload(local), ["/workspace/script.py"], "upload of a path")
        same(await session.upload(str(local), dest_path="/workspace/data"), ["/workspace/data/script.py"], "upload elsewhere")
    same(await session.upload(io.BytesIO(data), filename="raw.bin"), ["/workspace/raw.bin"], "upload of an object")
    same((await session.read("raw.bin")).content, data, "what was uploaded")
    same((await session.exec("python3 /workspace/data/script.py")).output, "up\n", "an uploaded script")


async def stats(session):
    stats = await session.stats()
    same(0 < stats.memory_bytes < stats.memory_limit, True, f"memory {stats}")
    same(stats.cpu_usage_usec > 0, True, f"cpu {stats}")


async def workspaces(client):
    async with await client.create_session(workspace_id=WORKSPACE) as session:
        await session.write("kept.txt", "kept")
        same((await session.info()).workspace_id, WORKSPACE, "workspace_id")
    same(WORKSPACE in [workspace.id for workspace in await client.list_workspaces()], True, "list_workspaces")
    async with await client.create_session(workspace_id=WORKSPACE) as session:
        same((await session.read("kept.txt")).content, b"kept", "a file that outlives its session")
    await client.delete_workspace(WORKSPACE)
    same(WORKSPACE in [workspace.id for workspace in await client.list_workspaces()], False, "delete_workspace")


async def agents(client):
    """The tools as the framework calls them: by name, with JSON, with the run's context."""
    from agents.tool_context import ToolContext

    from sandkasten import create_sandkasten_tools, sandbox_tools_for_workspace, sandkasten_tools

    async def call(tools, name, context, **arguments):
        tool = next(tool for tool in tools if tool.name == name)
        text = json.dumps(arguments)
        return await tool.on_invoke_tool(ToolContext(context=context, tool_name=name, tool_call_id="1", tool_arguments=text), text)

    async def all_tools(tools, context):
        same(await call(tools, "sandbox_write_file", context, path="notes.txt", content="noted"), "wrote notes.txt", "write tool")
        same(await call(tools, "sandbox_read_file", context, path="notes.txt"), "noted", "read tool")
        same(await call(tools, "sandbox_exec", context, cmd="cat notes.txt"), "exit_code=0\ncwd=/workspace\n---\nnoted", "exec tool")
        same("notes.txt" in await call(tools, "sandbox_list_files", context), True, "list tool")
        same("memory_bytes=" in await call(tools, "sandbox_stats", context), True, "stats tool")

    async with await client.create_session() as session:
        # SandkastenContext itself can't be made in 0.3.0 (pydantic finds no `Session`); the tools ask only for its field.
        await all_tools(sandkasten_tools(), type("Context", (), {"session": session})())
        await all_tools(create_sandkasten_tools(session), None)
    async with sandbox_tools_for_workspace(client, workspace_id=WORKSPACE) as (_, tools):
        await all_tools(tools, None)
    await client.delete_workspace(WORKSPACE)


async def main():
    same(importlib.metadata.version("sandkasten"), "0.3.0", "the published version")
    client = SandboxClient(base_url=URL, api_key=KEY)
    await quick_start(client)
    await context_managers()
    await context_keeps_the_users_error(client)
    await sessions(client)
    async with await client.create_session() as session:
        await execs(session)
        await streams(session)
        await files(session)
        await stats(session)
    await broken_streams(client)
    await workspaces(client)
    if "agents" in sys.argv:
        await agents(client)
    await client.close()
    print("every call gave what the README says")


asyncio.run(main())
