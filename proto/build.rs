//! Compiles the `.proto` files without an installed protoc.
use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 5] = [
        "common",
        "volunteer_service",
        "chain_service",
        "blob_service",
        "admin_service",
    ];
    println!("cargo:rerun-if-changed=proto");
    let files = FILES.map(|f| format!("proto/cipherhop/v1/{f}.proto"));
    let descriptors = protox::compile(&files, ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("v1.binpb"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
