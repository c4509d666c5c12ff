"""Put the built site (`make docs`) beside those of other releases, for a web server.

    python tools/publish_docs.py FOLDER VERSION

FOLDER gets VERSION/ and latest/, and `versions.json`, which the site's menu of versions reads.
Addresses without a version lead to latest/.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

SITE = Path(__file__).parents[1] / "site"
REDIRECT = """<!doctype html><title>shardkit</title><script>
const base = {base!r}, path = location.pathname.slice(base.length);
const known = path.startsWith("latest/") ? "latest/404.html" : "latest/" + path;
location.replace(base + known + location.hash);
</script><a href="{base}latest/">shardkit</a>
"""


def publish(folder: Path, version: str, site: Path = SITE, base: str = "/shardkit/") -> None:
    """Add a version; it becomes the latest if no other is newer."""
    path = folder / "versions.json"
    versions = json.loads(path.read_text()) if path.exists() else []
    names = {each["version"] for each in versions} | {version}
    newest = sorted(names, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    for name in (version, "latest") if newest[0] == version else (version,):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(site, folder / name)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if n == 0 else []}
        for n, name in enumerate(newest)
    ]
    path.write_text(json.dumps(entries, indent=1) + "\n")
    for name in ("index.html", "404.html"):
        (folder / name).write_text(REDIRECT.format(base=base))


if __name__ == "__main__":
    publish(Path(sys.argv[1]), sys.argv[2])
