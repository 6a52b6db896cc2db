#!/usr/bin/env python3
"""Writes the smallest model files, and from them first inputs for the fuzzers. Usage: seeds.py PARTS CORPUS"""
import json, os, struct, sys

parts, corpus = sys.argv[1:3]
D, HEADS, MLP, VOCAB = 4, 2, 4, 6
WORDS = ["a", "b", "ab", "\u0120", "<|im_start|>", "\u010a"]


def put(folder, name, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def floats(count):
    return b"".join(struct.pack("<f", 0.01 * (i % 7 - 3)) for i in range(count))


def layer(gguf):
    names = {
        True: ["blk.0.attn_norm", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output",
               "blk.0.ffn_norm", "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"],
        False: ["model.layers.0." + n for n in [
            "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]],
    }[gguf]
    shapes = [[D], [D, D], [2, D], [2, D], [D, D], [D], [MLP, D], [MLP, D], [D, MLP]]
    return [(n + ".weight", s) for n, s in zip(names, shapes)]


def count(shape):
    total = 1
    for n in shape:
        total *= n
    return total


# safetensors
tensors = [("model.embed_tokens.weight", [VOCAB, D]), ("model.norm.weight", [D])] + layer(False)
head, data = {}, b""
for name, shape in tensors:
    start = len(data)
    data += floats(count(shape))
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
head = json.dumps(head).encode()
weights = struct.pack("<Q", len(head)) + head + data
config = json.dumps({
    "model_type": "llama", "hidden_size": D, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": 2,
    "intermediate_size": MLP, "num_hidden_layers": 1, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}).encode()
tokenizer = json.dumps({
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 4, "content": "<|im_start|>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {w: i for i, w in enumerate(WORDS)}, "merges": [["a", "b"]]},
}).encode()
put(parts, "config.json", config)
put(parts, "model.safetensors", weights)
put(f"{corpus}/safetensors", "good", struct.pack("<HH", len(config), len(tokenizer)) + config + tokenizer + weights)
put(f"{corpus}/tokenizer", "good", tokenizer + b"\0ab b<|im_start|>\n")
split = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\s+|\\p{N}"}, "behavior": "Isolated", "invert": False},
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
other = json.loads(tokenizer)
other["pre_tokenizer"] = split
other["normalizer"] = {"type": "NFC"}
put(f"{corpus}/tokenizer", "split", json.dumps(other) + "\0ab 12 b")


# GGUF
def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def array(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def gguf(kind, size):
    u32 = lambda v: struct.pack("<I", v)
    meta = [("general.architecture", 8, text("llama"))]
    for key, value in [("embedding_length", D), ("attention.head_count", HEADS), ("attention.head_count_kv", 1),
                       ("attention.key_length", 2), ("feed_forward_length", MLP), ("block_count", 1)]:
        meta.append(("llama." + key, 4, u32(value)))
    meta.append(("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)))
    meta.append(("tokenizer.ggml.model", 8, text("gpt2")))
    meta.append(("tokenizer.ggml.pre", 8, text("smollm")))
    meta.append(("tokenizer.ggml.tokens", 9, array(8, [text(w) for w in WORDS])))
    meta.append(("tokenizer.ggml.merges", 9, array(8, [text("a b")])))
    meta.append(("tokenizer.ggml.token_type", 9, array(5, [struct.pack("<i", 3 if i == 4 else 1) for i in range(VOCAB)])))
    tensors = [("token_embd.weight", [VOCAB, D]), ("output_norm.weight", [D])] + layer(True)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, value_kind, value in meta:
        out += text(key) + u32(value_kind) + value
    data = b""
    for name, shape in tensors:
        data += b"\0" * (-len(data) % 32)
        out += text(name) + u32(len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        out += u32(kind) + struct.pack("<Q", len(data))
        data += floats(count(shape)) if size == 4 else bytes(size * count(shape))
    return out + b"\0" * (-len(out) % 32) + data


put(f"{corpus}/gguf", "f32", gguf(0, 4))
put(f"{corpus}/gguf", "f16", gguf(1, 2))

# Small texts
for name, content in {
    "config": "C[blobs]\nquota_bytes = 5\n[volunteers]\ngolden_digests = ['" + "ab" * 32 + "']\n[database]\nurl = 'postgres://a:b@c/d'\n",
    "url": "Uhttp://127.0.0.1:7070\ncht_abc",
    "url6": "Uhttp://[::1]:7070/\nx",
    "database": "Dpostgres://ann:s%40ret@db:5433/hops?sslmode=require",
    "manifest": "M" + "ab" * 32 + "  hop-007.ct\n" + "cd" * 32 + "  hop-1234.ct\n",
    "number": "F-0x1.8p+3",
    "range": "_5-25", "key": "_rot-17", "bytes": "_40GiB", "digest": "_" + "ab" * 32, "id": "_" + "ab" * 16,
    "reason": "_STALE_EPOCH", "isa": "_avx2",
}.items():
    put(f"{corpus}/text", name, content)

digest = "ab" * 32
put(f"{corpus}/key_manifest", "good", json.dumps(
    {"format": "cipherhop-keys/1", "params_digest": digest,
     "keys": [{"id": "conj", "limbs": 3, "digest": digest, "size": 5}, {"id": "rot-17", "limbs": 3, "digest": digest, "size": 5}]},
    separators=(",", ":")))


def trace(values):
    before, lines = ["x", "2d7a0d0d0ad1b4dcd4f5e4cf3b1e5c1b6c1c5d2a3b4c5d6e7f8091a2b3c4d5e6"], []
    import hashlib
    before = ["x", hashlib.sha256(b"in").hexdigest()]
    for i, value in enumerate(values):
        after = [f"r{i}", hashlib.sha256(value.encode()).hexdigest()]
        lines.append(json.dumps({"step": i, "name": f"s{i}", "inputs": [before], "outputs": [after], "seconds": 0.5}))
        before = after
    return "\n".join(lines) + "\n"


put(f"{corpus}/trace", "differ", trace(["1", "2", "3"]) + "\0" + trace(["1", "two", "three"]))
put(f"{corpus}/trace", "same", trace(["1"]) + "\0" + trace(["1"]))

# Headers; the targets fill in digests and sizes
head = b"CHCT" + struct.pack("<H", 2) + bytes([1, 2, 0, 0, 0, 0]) + bytes(32)
put(f"{corpus}/ciphertext", "good", b"\1" + head + b"\1\2\3\0\0\0\0")
put(f"{corpus}/ciphertext", "long", b"\7" + head + b"\1\2\3\0\0\0\0")
put(f"{corpus}/ciphertext", "raw", b"\0" + head)
for tag, arg in [(0, 0), (1, 0), (2, 5), (3, 0), (4, 0)]:
    for limbs, digits, special in [(1, 1, 1), (2, 1, 2), (4, 2, 2), (8, 3, 3)]:
        head = b"CHEK" + struct.pack("<HBBIBBH", 2, tag, digits, arg, limbs, special, 0) + bytes(64)
        put(f"{corpus}/eval_key", f"{tag}-{limbs}", b"\1" + head + b"\1\0\0\0\0\0\0")

# Protobuf by hand: numbers of calls as in src/rpc.rs
def varint(v):
    out = b""
    while True:
        out += bytes([v & 127 | (128 if v > 127 else 0)])
        v >>= 7
        if not v:
            return out


def lend(field, data):
    data = data if isinstance(data, bytes) else data.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data


def num(field, v):
    return varint(field << 3) + varint(v)


import hashlib

VOLUNTEER, OWNER, ADMIN = 0, 1, 2
CHAIN, ATTEMPT, UPLOAD, DEVICE = (bytes([b]) * 16 for b in (0xC0, 0xC1, 0xC2, 0xC3))
caps = num(1, 1 << 40) + num(2, 1 << 40) + num(3, 2) + lend(4, "x") + lend(5, "cipherhop-program/1") + lend(6, bytes(32))
acquire = (2, VOLUNTEER, lend(1, bytes(16)) + lend(2, caps))
sha = lambda b: hashlib.sha256(b).digest()
ref = lambda b, role: lend(1, sha(b)) + num(2, len(b)) + num(3, role)
frame = lambda m: b"\0" + struct.pack(">I", len(m)) + m
append = lend(1, UPLOAD) + lend(3, b"hello")
submit = lend(1, ATTEMPT) + num(2, 1) + lend(3, sha(b"o")) + num(4, 1) + lend(5, sha(b"r")) + lend(6, sha(b"t")) + num(7, 1)
calls = {
    "hello": [(0, VOLUNTEER, num(1, 1) + num(2, 1) + lend(3, "0") + lend(5, lend(1, ATTEMPT) + num(2, 1)))],
    "enroll": [(1, 4, lend(1, "x") + lend(2, "name") + lend(3, bytes(16)) + lend(5, bytes(32)) + lend(6, bytes(64)))],
    "work": [acquire, (3, VOLUNTEER, lend(1, ATTEMPT) + num(2, 1) + num(3, 2) + lend(4, num(1, 1))), (4, VOLUNTEER, submit),
             (7, VOLUNTEER, lend(1, ATTEMPT)), (5, VOLUNTEER, lend(1, ATTEMPT) + num(2, 1) + num(3, 1) + lend(4, "why"))],
    "release": [acquire, (6, VOLUNTEER, lend(1, ATTEMPT) + num(2, 1)), acquire, (0, VOLUNTEER, num(1, 1) + num(2, 1))],
    "upload": [(21, OWNER, lend(1, ref(b"hello", 3))), (22, OWNER, append), (23, OWNER, lend(1, UPLOAD)),
               (24, OWNER, lend(1, sha(b"hello")) + num(2, 1)), (25, OWNER, lend(1, sha(b"hello")))],
    "result": [acquire, (21, VOLUNTEER, lend(1, ref(b"hello", 5)) + lend(2, ATTEMPT) + num(3, 1)), (22, VOLUNTEER, append),
               (4, VOLUNTEER, submit)],
    "frames": [(21, OWNER, lend(1, ref(b"hello", 3))),
               (22, 0x80 | OWNER, frame(lend(1, UPLOAD) + lend(3, b"he")) + frame(lend(3, b"llo")))],
    "chains": [(12, OWNER, b""), (13, OWNER, lend(1, CHAIN)), (14, OWNER, lend(1, CHAIN)), (15, OWNER, lend(1, CHAIN)),
               (16, OWNER, lend(1, CHAIN)), (17, OWNER, lend(1, CHAIN) + lend(2, "ab" * 32 + "  hop-000.ct\n")),
               (18, OWNER, lend(1, CHAIN)), (20, OWNER, lend(1, CHAIN))],
    "operate": [(26, ADMIN, num(1, 3) + lend(2, "bob")), (28, ADMIN, lend(1, CHAIN) + num(2, 2) + lend(3, "why")),
                (29, ADMIN, lend(1, CHAIN) + num(2, 0) + lend(3, "why")), (30, ADMIN, lend(1, DEVICE) + num(2, 1) + lend(3, "why")),
                (31, ADMIN, lend(1, DEVICE) + num(2, 1)), (32, ADMIN, b""), (33, ADMIN, b""), (27, ADMIN, lend(1, bytes(16)))],
    "referee": [(31, ADMIN, lend(1, DEVICE) + num(2, 1)), (8, VOLUNTEER, b""), (9, VOLUNTEER, lend(1, ATTEMPT) + lend(2, ATTEMPT))],
    "reopen": [(10, VOLUNTEER, lend(1, CHAIN) + lend(3, "why")), (19, OWNER, lend(1, CHAIN) + num(2, 0) + lend(3, "why"))],
}
for name, steps in calls.items():
    put(f"{corpus}/rpc", name, b"".join(bytes([n, t]) + struct.pack("<H", len(p)) + p for n, t, p in steps))
params = sha(b"p")
chain = lend(1, bytes([8]) * 16) + lend(2, "other") + lend(3, params) + lend(4, "n10-INSECURE") + lend(5, params)
put(f"{corpus}/rpc", "create", bytes([11, OWNER]) + struct.pack("<H", len(chain)) + chain)

blob = lambda role: lend(10, lend(1, bytes(32)) + num(2, 9) + num(3, role))
roles = b"".join(blob(r) for r in range(1, 8))
put(f"{corpus}/answers", "assignment", b"\0" + lend(1, bytes(16)) + lend(2, "demo") + lend(5, bytes(16)) + num(6, 1) + lend(7, bytes(32)) + roles)
info = lend(1, "type.googleapis.com/google.rpc.ErrorInfo") + lend(2, lend(1, "STALE_EPOCH") + lend(2, "cipherhop.v1"))
retry = lend(1, "type.googleapis.com/google.rpc.RetryInfo") + lend(2, lend(1, num(1, 3)))
put(f"{corpus}/answers", "status", b"\1\7" + num(1, 7) + lend(2, "no") + lend(3, info) + lend(3, retry))
for kind in range(2, 8):
    put(f"{corpus}/answers", f"kind{kind}", bytes([kind]) + lend(1, bytes(16)) + num(2, 1))

put(f"{corpus}/local_files", "journal", b"j" + b'{"claimed":{"chain":"demo","hops":{"first":1,"last":2}}}')
state = b"CHUPLD01" + struct.pack("<Q", 1000)
state += sha(state)[:16]
slot = struct.pack("<QQ", 1, 10)
slot += sha(slot)[:16]
put(f"{corpus}/local_files", "upload", bytes([20]) + state + bytes(480) + slot)

ID = "01010101-0101-0101-0101-010101010101"
digest = lambda data: sha(data).hex()
contents = {1: b"program", 3: b"weights", 2: b"manifest", 5: b"input"}
blobs = [{"digest": digest(c), "size": len(c), "role": role, "name": ""} for role, c in contents.items()]
lease = {"attempt": ID, "epoch": 1, "chain": ID, "chain_name": "demo", "hop": 0, "generation": 0, "program": digest(b"program"),
         "parameter_set": "n11-INSECURE", "insecure": True, "blobs": blobs, "expected_output_bytes": 6}
result = {"output": digest(b"output"), "output_size": 6, "trace": digest(b"trace"), "trace_size": 5, "trace_root": digest(b""),
          "compute_seconds": 1.5}
in_order = b"".join(sorted(contents.values(), key=sha))
for name, result, data in [("work", None, in_order), ("done", result, b"outputtrace")]:
    card = json.dumps({"format": "cipherhop-pack/1", "lease": lease, "result": result})
    put(f"{corpus}/pack", name, b"c" + card.encode() + b"\0" + data)
put(f"{corpus}/preferences", "hours", b"h22:00-07:00, 12:00-13:30")
put(f"{corpus}/preferences", "always", b"halways")
put(f"{corpus}/preferences", "file", b'fthreads = 2\nmemory = "8GiB"\ncache = "40GiB"\nhours = "22:00-07:00"\nnice = 10\n'
    b'isa = "scalar"\nallow_insecure = false\n')
