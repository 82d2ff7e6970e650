"""Uses the client that openapi-python-client made, for real: ADDRESS KEY."""

import base64
import io
import sys
import tarfile
import uuid

from generated import AuthenticatedClient
from generated.api.exec_ import exec_, exec_stream, list_execs
from generated.api.files import (
    get_file,
    list_directory,
    pack_archive,
    put_file,
    read_file,
    unpack_archive,
    upload_files,
    write_file,
)
from generated.api.processes import get_process, process_events, process_stdin, start_process
from generated.api.sessions import create_session, delete_session, get_session, list_sessions
from generated.models import (
    CreateSession,
    CreateSessionLabelsType0,
    ErrorBody,
    ExecRequest,
    StartProcess,
    UploadForm,
    WriteFile,
)
from generated.types import File

address, key = sys.argv[1:3]
client = AuthenticatedClient(base_url=address, token=key)

labels = CreateSessionLabelsType0.from_dict({"made-by": "a generated client"})
session = create_session.sync(client=client, body=CreateSession(ttl_seconds=600, labels=labels))
try:
    assert session.labels.to_dict() == {"made-by": "a generated client"}, session
    assert session.id in [one.id for one in list_sessions.sync(client=client)]
    assert get_session.sync(session.id, client=client).created_at == session.created_at

    # Commands: an answer, a stream, a list.
    done = exec_.sync(session.id, client=client, body=ExecRequest(cmd="echo hello; exit_code=3"))
    assert (done.output, done.exit_code) == ("hello\n", 0), done
    stream = exec_stream.sync(session.id, client=client, body=ExecRequest(cmd="echo streamed"))
    assert "event: chunk\n" in stream and "streamed" in stream and "event: done\n" in stream, stream
    assert len(list_execs.sync(session.id, client=client).execs) == 2

    # Bytes: put, got whole and in part, uploaded, packed.
    content = bytes(range(256)) * 300
    put = put_file.sync(session.id, client=client, body=File(io.BytesIO(content)), path="bytes")
    assert put.ok and put.etag.startswith('"'), put
    assert get_file.sync(session.id, client=client, path="bytes").payload.read() == content
    part = get_file.sync_detailed(session.id, client=client, path="bytes", range_="bytes=1-3")
    assert (part.status_code, part.parsed.payload.read()) == (206, b"\x01\x02\x03"), part
    known = get_file.sync_detailed(session.id, client=client, path="bytes", if_none_match=put.etag)
    assert known.status_code == 304, known
    form = UploadForm(path="up", file=File(io.BytesIO(content), "a b.bin", "application/octet-stream"))
    up = upload_files.sync(session.id, client=client, body=form)
    assert up.paths == ["/workspace/up/a b.bin"], up
    write_file.sync(session.id, client=client, body=WriteFile(path="up/text", text="text\n"))
    text = read_file.sync(session.id, client=client, path="up/text")
    assert base64.b64decode(text.content_base64) == b"text\n", text
    names = [entry.name for entry in list_directory.sync(session.id, client=client, path="up").entries]
    assert names == ["a b.bin", "text"], names
    packed = pack_archive.sync(session.id, client=client, path="up").payload.read()
    assert set(tarfile.open(fileobj=io.BytesIO(packed)).getnames()) >= {"a b.bin", "text"}
    body = File(io.BytesIO(packed))
    assert unpack_archive.sync(session.id, client=client, body=body, path="again").entries >= 2

    # A process that is given bytes.
    begun = start_process.sync(
        session.id, client=client, body=StartProcess(argv=["cat"], stdin="open")
    )
    process_stdin.sync(
        session.id, begun.process_id, client=client, body=File(io.BytesIO(b"\x00\xff")), eof=True
    )
    events = process_events.sync(session.id, begun.process_id, client=client, follow=True)
    assert base64.b64encode(b"\x00\xff").decode() in events and "event: exit\n" in events, events
    assert get_process.sync(session.id, begun.process_id, client=client).exit_code == 0

    # An error is what the document says, too.
    missing = read_file.sync(session.id, client=client, path=f"no-{uuid.uuid4()}")
    assert isinstance(missing, ErrorBody) and missing.error_code == "FILE_NOT_FOUND", missing
finally:
    assert delete_session.sync(session.id, client=client).ok
assert get_session.sync(session.id, client=client).status == "destroyed"
print("all of it works")
