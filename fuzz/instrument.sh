#!/bin/sh
# Stands before rustc (RUSTC_WRAPPER): coverage counters for libFuzzer, in our crates and in the parsers they use.
rustc=$1
shift
case " $* " in
*" --target "*) ;;
*) exec "$rustc" "$@" ;; # for this machine: build scripts, macros
esac
case " $* " in
*" --crate-name cipherhop_"* | *" --crate-name serde_json "* | *" --crate-name toml"* | *" --crate-name prost "* | \
*" --crate-name safetensors "* | *" --crate-name tar "* | *" --crate-name tokenizers "* | *" --crate-name x509_parser "*)
  exec "$rustc" "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
  ;;
*) exec "$rustc" "$@" ;;
esac
