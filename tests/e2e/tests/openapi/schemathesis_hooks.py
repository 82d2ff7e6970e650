"""What schemathesis can't know by the document alone.

A request that fits the document is taken, or refused for what is there or not (`STATE`). What is left are
rules that JSON Schema has no words for; each stands in `UNSAYABLE` with its call and its message, and no
other refusal passes.
"""

import io
import json
import os
import re
import tarfile
import urllib.error
import urllib.request

import schemathesis
from schemathesis.core.failures import Failure

ADDRESS = os.environ["SANDKASTEN_URL"]
KEY = os.environ["SANDKASTEN_API_KEY"]

# Codes that tell what is there, not that the request is malformed.
STATE = {
    "FILE_NOT_FOUND", "IS_A_DIRECTORY", "NOT_A_DIRECTORY", "NOT_A_FILE", "PERMISSION_DENIED", "ALREADY_EXISTS",
    "CONFLICT", "PRECONDITION_FAILED", "PATH_NOT_ALLOWED", "IMAGE_NOT_FOUND", "IDEMPOTENCY_MISMATCH",
    "WORKSPACE_IN_USE", "SESSION_DESTROYED",
}

# (call, message, why the document can't say it)
UNSAYABLE = [
    (r"^\w+ .*/fs/(grep|glob)$", r"^the (pattern|glob): ", "what is a regular expression or a glob"),
    (r"^POST .*/exec/stream$", r"^`detach` has no stream", "one schema serves both ways to run a command"),
    (r"^POST .*/fs/upload$", r"^the upload has no part named", "see `before_load_schema`"),
    (r"^POST .*/fs/upload$", r"^more than one field `path` or `path_base64`", "see `before_load_schema`"),
    (r"^POST .*/fs/upload$", r"^invalid file name", "names of files are in no schema"),
    (r"^DELETE .*/fs/file$", r"^`If-Match` is for one file", "a header excludes a value of the query"),
    (r"^POST .*/fs/upload$", r"^more than 100 files", "`file` and `files` count together"),
    (r"^POST .*/processes$", r"^`cwd` can't be entered", "what is there, and what leads in a circle"),
    (r".", r"is \d+ bytes; the limit is \d+$", "JSON Schema counts characters, the daemon bytes"),
]

# Refused for something else that is wrong with it and is seen before: (call, code).
REFUSED_BEFORE = [
    (r"^POST /v1/sessions$", "IDEMPOTENCY_MISMATCH"),
    (r"^POST .*/exec(/stream)?$", "IDEMPOTENCY_MISMATCH"),
]


@schemathesis.hook
def filter_failure(context, failure: Failure, case, response):
    """Whether a failure counts."""
    call = f"{case.method} {case.operation.path}"
    match type(failure).__name__:
        case "RejectedPositiveData":
            return not may_be_refused(call, case_of(case), error(response))
        case "AcceptedNegativeData":
            if "in header - object with unexpected properties" in failure.message:
                # A header that nobody knows is none of the daemon's to refuse.
                return False
            code = error(response).get("error_code")
            if call.endswith("/exec/stream") and code == "INVALID_REQUEST":
                return False
            return not any(re.search(of, call) and code == known for of, known in REFUSED_BEFORE)
    return True


def may_be_refused(call, parts, body):
    code, message = body.get("error_code"), body.get("message", "")
    if code in STATE:
        return True
    if code == "INVALID_PATH" and any(name.endswith("_base64") for name in parts):
        # What bytes base64 stands for: a NUL, a name that is too long.
        return True
    return any(re.search(of, call) and re.search(says, message) for of, says, _ in UNSAYABLE)


def case_of(case):
    """Names of what a request has in its query and body."""
    return {name for part in (case.query, case.body) if isinstance(part, dict) for name in part}


def error(response):
    """The error of an answer; that of `HEAD` is told by `GET`."""
    request = response.request
    if request.method == "HEAD" and response.status_code >= 400:
        headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
        return json.loads(ask(request.url, headers))
    # A stream that has begun tells it as its event.
    text = re.sub(rb"(?s).*event: error\ndata: ", b"", response.content)
    try:
        return json.loads(text)
    except ValueError:
        return {}


def ask(address, headers):
    request = urllib.request.Request(address, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.read()


def get(path):
    return json.loads(ask(ADDRESS + path, {"Authorization": f"Bearer {KEY}"}))


def each(value):
    """Every object of the document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from each(one)


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Puts into the document what it leaves to the daemon: bounds of its configuration, and names that exist."""
    info = get("/v1/info")
    image = info["default_image"]
    for schema in each(raw_schema):
        bound = schema.get("x-maximum")
        if isinstance(bound, str):
            limit = info
            for name in bound.split("."):
                limit = limit[name]
            if limit is not None:
                schema["maximum"] = limit
    schemas = raw_schema["components"]["schemas"]
    for name in ("ExecRequest", "StartProcess", "CreateSession"):
        fields = schemas[name]["properties"]
        fields["user"] = {"enum": ["sandbox", "root", "0", None]}
    # Of a process a directory that is not there is exit 127, like a program that is not.
    schemas["ExecRequest"]["properties"]["cwd"] = {"enum": ["/workspace", "/tmp", "dir", None]}
    schemas["CreateSession"]["properties"]["cwd"] = {"enum": ["/workspace", "/tmp", "", None]}
    schemas["CreateSession"]["properties"]["image"] = {"enum": [image, "", None]}
    # `if_match` is judged before the edits are: one that fails would hide what is wrong with them.
    del schemas["EditFile"]["properties"]["if_match"]
    # For a header with a pattern schemathesis sends an empty text.
    for name in ("IfMatch", "IfNoneMatch"):
        raw_schema["components"]["parameters"][name]["schema"] = {"enum": ["*", '"a-0-1-2"', 'W/"b", "a-0-1-2"']}
    # Schemathesis can't judge a condition beside files.
    for keyword in ("if", "then", "dependentSchemas"):
        del schemas["UploadForm"][keyword]
    for path, item in raw_schema["paths"].items():
        for method, operation in item.items():
            for parameter in operation["parameters"]:
                narrow(path, parameter, image)
            # Nobody has been given a cursor.
            operation["parameters"] = [one for one in operation["parameters"] if one.get("name") != "cursor"]


def narrow(path, parameter, image):
    name = parameter.get("name")
    if name == "user" and "/sessions/" in path:
        parameter["schema"] = {"enum": ["sandbox", "root", "0"]}
    if name == "path":
        # As many that are there as any others.
        parameter["schema"] = {"anyOf": [{"enum": ["file", "dir", "dir/file", "."]}, parameter["schema"]]}
    if name == "name":
        parameter["schema"] = {"enum": [image]}


@schemathesis.hook
def map_case(context, case):
    """No schema says of a query or of headers that one excludes another: what fits is given one of the two."""
    if case.meta is None or case.meta.generation.mode.is_negative:
        return case
    query = case.query if isinstance(case.query, dict) else {}
    if "path_base64" in query:
        query.pop("path", None)
    elif "path" not in query and takes_path(case.operation):
        query["path"] = "file"
    headers = case.headers
    if case.method in ("PUT", "DELETE") and headers and "If-Match" in headers:
        headers.pop("If-None-Match", None)
    return case


def takes_path(operation):
    needs = r"/fs/(file|list|read|stat|archive)$"
    return re.search(needs, operation.path) is not None


@schemathesis.serializer("application/x-tar", "application/gzip")
def tar(context, value):
    """A tar archive, whatever bytes were thought of."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    return packed.getvalue()
