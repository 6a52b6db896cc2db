//! Compiles the `.proto` files without an installed protoc.
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
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
