"""What schemathesis can't write by itself: a tar archive, whatever bytes it thought of."""

import io
import tarfile

import schemathesis


@schemathesis.serializer("application/x-tar", "application/gzip")
def tar(context, value):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    return packed.getvalue()
