"""A hub on this machine: what `huggingface_hub` asks of huggingface.co to upload a model.

It stores each commit's files by their path. It speaks the parts of the API that an upload takes:
make a repository, check front matter, say how each file goes up, take large files (git-lfs) and the
commit. `refuses` is the status that it answers for every request to write.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml


class Hub:
    """The server, with what it has seen: `made` {name: private}, `files` {name: {path: bytes}}."""

    def __init__(self, refuses: int = 0):
        self.refuses, self.made, self.files, self.blobs = refuses, {}, {}, {}
        self.tokens, self.cards = set(), []
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_POST(self):
        self.hub.tokens.add(self.headers.get("Authorization"))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if self.hub.refuses:
            self.answer({"error": "refused"}, self.hub.refuses)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            status = 409 if name in self.hub.made else 200
            private = asked.get("private") or asked.get("visibility") == "private"
            self.hub.made.setdefault(name, bool(private))
            self.answer({"url": f"{self.hub.address}/{name}"}, status)
        elif path == "/api/validate-yaml":
            text = json.loads(body)["content"]
            self.hub.cards.append(yaml.safe_load(text.split("---")[1]))
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files, "commitOid": "0" * 40})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    "oid": o["oid"],
                    "size": o["size"],
                    "actions": {"upload": {"href": f"{self.hub.address}/blobs/{o['oid']}"}},
                }
                for o in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            self.commit(path, [json.loads(line) for line in body.splitlines()])
        else:
            self.answer({"error": f"no {path}"}, 404)

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.blobs[self.path.rpartition("/")[2]] = data
        self.answer({})

    def do_GET(self):
        name = self.path.removeprefix("/api/models/").partition("/revision")[0]
        known = name in self.hub.made
        found = {"_id": "1", "id": name, "sha": "0" * 40, "siblings": [], "tags": []}
        self.answer(found if known else {"error": "not found"}, 200 if known else 404)

    def commit(self, path: str, lines: list[dict]):
        """Store the files of a commit; a large one must be there already, as it was announced."""
        name = path.removeprefix("/api/models/").partition("/commit/")[0]
        files = self.hub.files.setdefault(name, {})
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                data = self.hub.blobs[value["oid"]]
                assert hashlib.sha256(data).hexdigest() == value["oid"]
                files[value["path"]] = data
        url = f"{self.hub.address}/{name}/commit/{'1' * 40}"
        self.answer({"success": True, "commitUrl": url, "commitOid": "1" * 40})

    def answer(self, value: dict, status: int = 200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Nothing is printed."""
