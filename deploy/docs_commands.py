"""Commands in the documentation and in deploy/ are right.

    docs_commands.py PROGRAMS            checks every command line against --help, every path and every link
    docs_commands.py PROGRAMS --run      also runs the README's commands in order: an operator's, a key holder's and a
                                         newcomer's, who must see a hop of theirs verified within five commands

PROGRAMS: a folder with the three programs.
"""

import functools
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import readme_run

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = ("coordinator", "worker", "owner")
problems = []


def check(good, text):
    """Remembers a complaint."""
    if not good:
        problems.append(text)


# --- what a program takes, read from its --help ---


class Help:
    """Subcommands, options (name -> takes a value) and numbers of positional arguments of one command."""

    def __init__(self, text):
        commands = re.search(r"^Commands:\n((?:  .*\n|\n)*)", text, re.M)
        self.commands = set(re.findall(r"^  (\w[\w-]*)", commands.group(1), re.M)) if commands else set()
        self.options = {}
        for line in re.findall(r"^ {2,6}((?:-\w, )?--?[\w-]+.*)$", text, re.M):
            names, value = re.match(r"((?:-\w, )?--?[\w-]+)( <.*?>|=<.*?>| \[<)?", line).groups()
            for name in names.split(", "):
                self.options[name] = len(re.findall(r"<", line.split("  ")[0])) if value else 0
        usage = re.search(r"^Usage: (.*)$", text, re.M).group(1)
        usage = re.sub(r"--?[\w-]+ <.*?>", "", usage)
        usage = usage.replace("[OPTIONS]", "").replace("<COMMAND>", "").replace("[COMMAND]", "")
        self.least = len(re.findall(r"(?<!\[)<[\w|-]+>", usage))
        self.most = self.least + len(re.findall(r"\[<?[\w-]+>?\]", usage))
        if "..." in usage:
            self.most = 99


@functools.cache
def help_of(programs, *words):
    """The help of a program's subcommand."""
    command = [f"{programs}/{words[0]}", *words[1:], "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, env={})
    return Help(answer.stdout) if answer.returncode == 0 else None


def check_command(programs, words, where):
    """One command line of our programs, split into words; `where` for complaints."""
    path, rest = [words[0]], list(words[1:])
    known = help_of(programs, *path)
    positional, options = 0, dict(known.options)
    while rest:
        word = rest.pop(0)
        if re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word):
            name, equals, _ = word.partition("=")
            if name not in options:
                check(False, f"{where}: {' '.join(path)} has no option {name}")
                return
            if not equals:
                if len(rest) < options[name]:
                    check(False, f"{where}: {name} lacks its value")
                del rest[: options[name]]
        elif known.commands:
            if word not in known.commands:
                check(False, f"{where}: {' '.join(path)} has no command {word}")
                return
            path.append(word)
            known = help_of(programs, *path)
            options |= known.options
        else:
            positional += 1
    complete = not known.commands and known.least <= positional <= known.most
    check(complete, f"{where}: {' '.join(words)}: {positional} arguments, {known.least} to {known.most} are taken")


def check_line(programs, line, where):
    """A line of a shell script: every command in it that is ours, and every script that it names."""
    line = re.sub(r"<\((.*?)\)", r"; \1 ;", line)
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>()")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError as error:
        check(False, f"{where}: {line}: {error}")
        return
    command = []
    for word in [*words, ";"]:
        if re.fullmatch(r"[;|&()]+", word):
            check_words(programs, command, where)
            command = []
        else:
            command.append(word)


def check_words(programs, words, where):
    for at, word in enumerate(words):
        if word in ("<", ">", ">>"):
            words = words[:at]
            break
    while words and (re.match(r"\w+=", words[0]) or words[0] in ("sudo", "time", "source")):
        words = words[1:]
    if not words or words[0] in ("alias", "export", "unset"):
        return
    for word in words:
        if re.match(r"(\./)?(deploy|coordinator|worker|owner|proto|docs|fuzz|migrations)/[\w./-]+$", word):
            check((ROOT / word).exists(), f"{where}: there is no {word}")
    # also after docker compose exec, setpriv and the like
    for at, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        if name in (f"cipherhop-{n}" for n in NAMES) and not word.startswith("dist/") and (at == 0 or "/" in word):
            if name == words[0].rsplit("/", 1)[-1] or word.startswith("/"):
                check_command(programs, [name, *words[at + 1 :]], where)
                return


# --- the pages ---


def blocks(page):
    """Shell blocks of a page: (line number, text)."""
    for block in re.finditer(r"^```sh\n(.*?)^```", page, re.M | re.S):
        yield page[: block.start()].count("\n") + 2, block.group(1)


def shell_lines(text):
    """Lines without comments and empty ones, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", text)
    for number, line in enumerate(text.splitlines()):
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        if line:
            yield number, line


def anchors(page):
    heads = re.findall(r"^#+ (.*)$", page, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def check_pages(programs):
    count = 0
    for path in PAGES:
        page, name = path.read_text(), path.relative_to(ROOT)
        for start, text in blocks(page):
            for number, line in shell_lines(text):
                check_line(programs, line, f"{name}:{start + number}")
                count += 1
        # commands inside a sentence: `cipherhop-worker run`; names alone and with ... are no commands
        prose = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
        for command in re.findall(r"`(cipherhop-(?:coordinator|worker|owner) [^`]*)`", prose):
            words = shlex.split(command)
            known = help_of(programs, words[0])
            check(words[1].startswith("-") or words[1] in known.commands, f"{name}: `{command}`: no such command")
            count += 1
        for target in re.findall(r"\]\(([^)\s]+)\)", page):
            if re.match(r"\w+:", target):
                continue
            file, _, anchor = target.partition("#")
            place = (path.parent / file).resolve() if file else path
            check(place.exists(), f"{name}: the link {target} leads nowhere")
            if anchor and place.suffix == ".md" and place.exists():
                check(anchor in anchors(place.read_text()), f"{name}: {target}: there is no such heading")
        for mention in re.findall(r"`((?:deploy|coordinator|worker|owner|proto|docs|fuzz|migrations|failpoint|usage)/[\w./-]*)`", page):
            check((ROOT / mention).exists(), f"{name}: there is no {mention}")
    check(count > 40, f"only {count} commands were found in the pages")
    return count


def check_figures():
    """Figures of docs/security.md and docs/formats.md that follow from the parameters' source."""
    code = (ROOT / "worker/ckks/src/params.rs").read_text()

    def primes(name):
        found = re.search(rf"const {name}: \[u64; \d+\] = \[(.*?)\];", code, re.S)
        return [int(p) for p in re.findall(r"\d+", found.group(1))]

    q = [int(re.search(r"const Q0: u64 = (\d+)", code).group(1))]
    q += primes("MESSAGE_PRIMES") + primes("EVALMOD_PRIMES") + primes("CTS_PRIMES")
    p = primes("SPECIAL_PRIMES")
    bits = re.search(r"\bbits: ([\d.]+)", code).group(1)
    sparse = re.search(r"sparse_bits: ([\d.]+)", code).group(1)
    bound = re.search(r"\(16, ([\d.]+)\)", code).group(1).removesuffix(".0")
    boundary = int(re.search(r"stc_levels: (\d+)", code).group(1)) + int(re.search(r"usable_levels: (\d+)", code).group(1))
    size = 44 + 2 * sum(2**16 * m.bit_length() // 8 for m in q[: boundary + 1])
    log = [sum(map(math.log2, part)) for part in (q, q + p, [q[0], p[0]])]
    for page, wanted in {
        "security": (
            f"| {len(q)} for ciphertexts ({log[0]:.0f} bits), {len(p)} special",
            f"| {log[1]:.1f}; at most {bound} allowed",
            f"2^{bits} (",
            f"q0 p0 ({log[2]:.0f} bits): 2^{sparse}",
        ),
        "formats": (f"(level {boundary}) has {size:,}".replace(",", " "),),
    }.items():
        text = (ROOT / f"docs/{page}.md").read_text()
        for figure in wanted:
            check(figure in text, f"docs/{page}.md does not say '{figure}', which follows from params.rs")


# --- deploy/ ---


def check_deploy(programs):
    """Command lines in units, compose, Kubernetes, dstack, cloud-init and the heads of files."""
    count = 0
    deploy = ROOT / "deploy"
    for path in sorted(p for p in deploy.rglob("*") if p.suffix in (".service", ".yaml", ".yml", ".tftpl", ".toml")):
        text, name = path.read_text(), path.relative_to(ROOT)
        lines = []
        if path.suffix == ".service":
            joined = re.sub(r"\\\n\s*", " ", text)
            lines += [m.replace("$CIPHERHOP_RUN_OPTIONS", "") for m in re.findall(r"^ExecStart(?:Pre)?=(.*)$", joined, re.M)]
        if path.suffix in (".yml", ".tftpl"):
            # $ca is one option or none
            lines += [m.replace("$ca", "") for m in re.findall(r"^  - .*?(cipherhop-worker (?:--json )?(?:enroll|run) .*)$", text, re.M)]
        # the words of an image's command
        for args in re.finditer(r"^( *)(?:args|command|test): *(\[.*\]|\n(?:\1  - .*\n)+)", text, re.M):
            given = args.group(2)
            words = re.split(r", *", given.strip("[]")) if given.startswith("[") else re.findall(r"- (.*)", given)
            words = [w.strip().strip("\"'") for w in words]
            # the image above names the program
            images = re.findall(r"image: \S*?(cipherhop-\w+)", text[: args.start()])
            if "CMD" in words:
                words = words[2:] if "/cipherhop" in words[1] else []
            if images and words and images[-1].removeprefix("cipherhop-") in NAMES:
                lines.append(shlex.join([images[-1], *words]))
        # commands that the head of a file tells to run
        head = re.sub(r"\\\n#\s*", " ", text)
        for line in re.findall(r"^#\s+(.*)$", head, re.M):
            line = re.sub(r"\s#.*", "", line)
            ran = re.search(r"docker compose run .*?--rm (coordinator|worker) (.*)", line)
            executed = re.search(r"exec .*?/(cipherhop-\w+ .*)", line) or re.search(r"(?:^|sudo -u \S+ )(cipherhop-\w+ \w.*)", line)
            if ran:
                lines.append(f"cipherhop-{ran.group(1)} {ran.group(2)}")
            elif executed:
                lines.append(executed.group(1))
        for line in lines:
            check_line(programs, re.sub(r"\$\{?\w+\}?|\$\(\w+\)", "x", line), name)
            count += 1
    check(count > 15, f"only {count} commands were found in deploy/")
    return count


def main():
    programs = Path(sys.argv[1]).resolve()
    pages, deploy = check_pages(programs), check_deploy(programs)
    check_figures()
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{pages} commands in the pages and {deploy} in deploy/ have the options their programs take")
    if "--run" in sys.argv[2:]:
        readme_run.run(programs, ROOT / "README.md", blocks, shell_lines)


main()
