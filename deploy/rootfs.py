"""The last stage of a Containerfile as a folder, without a container engine; prints how to start it as shell words.

    rootfs.py CONTAINERFILE DIST OUT        DIST stands for /dist of the build stage

Knows what our files use: FROM scratch, COPY --from=build, USER, ENV, WORKDIR, VOLUME, EXPOSE, STOPSIGNAL, ENTRYPOINT; refuses the rest. As root, owners are set as an engine would.
"""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

containerfile, dist, out = (Path(p) for p in sys.argv[1:4])
text = containerfile.read_text().replace("\\\n", " ")
lines = [line for line in text[text.rindex("\nFROM ") :].splitlines() if line and not line.startswith("#")]
user, env, entrypoint = "0:0", [], []
for line in lines:
    word, rest = line.split(maxsplit=1)
    if word == "FROM":
        assert rest == "scratch", line
        out.mkdir(parents=True)
    elif word == "COPY":
        flags = [w for w in rest.split() if w.startswith("--")]
        source, target = [w for w in rest.split() if not w.startswith("--")]
        assert "--from=build" in flags, line
        place = out / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.startswith("/dist/"):
            shutil.copy2(dist / source.removeprefix("/dist/"), place)
        elif os.path.isfile(source):
            shutil.copyfile(source, place)
        else:
            place.mkdir(mode=0o700)
        for flag in flags:
            if flag.startswith("--chown=") and os.geteuid() == 0:
                os.chown(place, *map(int, flag.removeprefix("--chown=").split(":")))
    elif word == "USER":
        user = rest
    elif word == "ENV":
        env.append(rest)
    elif word == "ENTRYPOINT":
        entrypoint = json.loads(rest)
    else:
        assert word in ("WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL"), line
# places that every engine mounts
for name in ("proc", "etc"):
    (out / name).mkdir(exist_ok=True)
(out / "etc/hosts").write_text("127.0.0.1 localhost\n")
print(f"user={shlex.quote(user)} entrypoint={shlex.quote(entrypoint[0])} env=({shlex.join(env)})")
