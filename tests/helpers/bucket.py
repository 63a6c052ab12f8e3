"""A bucket of Google Cloud Storage in this process: as much of the JSON API as gcsfs asks for."""

import base64
import contextlib
import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import fsspec
import pytest


class Bucket(BaseHTTPRequestHandler):
    """Answers for every bucket; objects are kept in `server.objects`, {(bucket, name): bytes}."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Stay quiet."""

    def answer(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # a client may ask for no more than the head
            self.wfile.write(body)

    def described(self, bucket, name):
        content = self.server.objects[bucket, name]
        digest = base64.b64encode(hashlib.md5(content).digest()).decode()
        size = str(len(content))
        return {"kind": "storage#object", "bucket": bucket, "name": name, "size": size} | {
            "md5Hash": digest,
            "etag": digest,
            "generation": "1",
            "updated": "2020-01-01T00:00:00.000Z",
            "timeCreated": "2020-01-01T00:00:00.000Z",
        }

    def place(self):
        """(bucket, name or None, options) of the request."""
        url = urlsplit(self.path)
        found = re.search(r"/b/([^/]+)(?:/o(?:/(.+))?)?$", url.path)
        options = {k: v[0] for k, v in parse_qs(url.query).items()}
        if not found:
            return None, None, options
        return found[1], found[2] and unquote(found[2]), options

    def do_GET(self):
        bucket, name, options = self.place()
        if bucket is None:
            self.answer(404, {"error": {"code": 404, "message": "Not Found"}})
        elif name is None:
            self.list(bucket, options)
        elif (bucket, name) not in self.server.objects:
            self.answer(404, {"error": {"code": 404, "message": f"No such object: {name}"}})
        elif options.get("alt") != "media":
            self.answer(200, self.described(bucket, name))
        else:
            content = self.server.objects[bucket, name]
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if not asked:
                self.answer(200, content)
                return
            begin, end = int(asked[1]), int(asked[2] or len(content) - 1)
            total = f"bytes {begin}-{min(end, len(content) - 1)}/{len(content)}"
            self.answer(206, content[begin : end + 1], Content_Range=total)

    def list(self, bucket, options):
        prefix, delimiter = options.get("prefix", ""), options.get("delimiter", "")
        items, folders = [], set()
        for held, name in sorted(self.server.objects):
            if held != bucket or not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self.described(bucket, name))
        self.answer(200, {"items": items, "prefixes": sorted(folders)})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        bucket, _, options = self.place()
        if self.server.read_only:
            self.answer(403, {"error": {"code": 403, "message": "no storage.objects.create"}})
        elif begun := re.fullmatch(r"/upload/[^/]+/(\d+)", self.path):
            self.go_on(int(begun[1]), body)
        elif options.get("uploadType") == "multipart":
            boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1]
            _, described, content, _ = body.split(f"--{boundary}".encode())
            name = json.loads(described.split(b"\n\n", 1)[1])["name"]
            self.server.objects[bucket, name] = content.split(b"\n\n", 1)[1][:-1]
            self.answer(200, self.described(bucket, name))
        elif options.get("uploadType") == "resumable":
            name = json.loads(body)["name"]
            where = f"http://{self.headers['Host']}/upload/{bucket}/{len(self.server.uploads)}"
            self.server.uploads.append([bucket, name, b""])
            self.answer(200, {}, Location=where)
        else:
            self.answer(400, {"error": {"code": 400, "message": self.path}})

    def go_on(self, number, chunk):
        """The next chunk of a resumable upload."""
        upload = self.server.uploads[number]
        upload[2] += chunk
        if self.headers["Content-Range"].endswith(f"/{len(upload[2])}"):
            self.server.objects[upload[0], upload[1]] = upload[2]
            self.answer(200, self.described(*upload[:2]))
        else:
            self.answer(308, Range=f"bytes=0-{len(upload[2]) - 1}")

    def do_DELETE(self):
        bucket, name, _ = self.place()
        gone = self.server.objects.pop((bucket, name), None)
        self.answer(204 if gone is not None else 404, b"" if gone is not None else {"error": {}})


@contextlib.contextmanager
def google_bucket():
    """A place in a bucket, as a gs:// URL, and the server."""
    # Else gcsfs would ask by gRPC what kind of bucket it is, and wait a minute for no answer.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    import gcsfs

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    server.objects, server.uploads, server.read_only = {}, [], False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    gcsfs.GCSFileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        patched.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        yield "gs://bucket/place", server
    gcsfs.GCSFileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()
