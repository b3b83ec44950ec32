//! Compiles the `.proto` files without `protoc` and gives every message a `Debug` that hides secrets.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use prost_reflect::DescriptorPool;

mod debug;

/// One file a package; the path is also the name under which reflection shows the file.
const FILES: [&str; 8] = [
    "csi/csi.proto",
    "csi/v0/csi.proto",
    "csi/v1/csi.proto",
    "identity/identity.proto",
    "pluginregistration/pluginregistration.proto",
    "reclaimspace/reclaimspace.proto",
    "volumegroup/volumegroup.proto",
    "drumlin/v1/drumlin.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    rebuild_when_changed();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).open_files(FILES)?;
    // The program carries the descriptors without their comments, the generated code has them as documentation.
    compiler.include_source_info(false);
    fs::write(
        out.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    compiler.include_source_info(true);
    let pool = compiler.descriptor_pool();

    let mut builder = tonic_prost_build::configure()
        .out_dir(&out)
        // Ordered maps: the same message always prints and encodes alike.
        .btree_map(".")
        .skip_debug(["."]);
    // Skipping covers enums as well; theirs has nothing to hide.
    for name in pool
        .all_enums()
        .map(|found| format!(".{}", found.full_name()))
    {
        builder = builder.enum_attribute(name, "#[derive(Debug)]");
    }
    builder.compile_fds(compiler.file_descriptor_set())?;
    append_debug(&pool, &out)
}

#[expect(clippy::print_stdout, reason = "cargo reads a build script's output")]
fn rebuild_when_changed() {
    for path in FILES.iter().chain(&["build"]) {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// Appends the implementations to each package's generated file, so that one `include_proto!` brings both.
fn append_debug(pool: &DescriptorPool, out: &Path) -> Result<(), Box<dyn Error>> {
    for file in pool.files().filter(|file| FILES.contains(&file.name())) {
        let mut code = String::new();
        for message in file.messages() {
            debug::write_message(&mut code, &message)?;
        }
        let path = out.join(format!("{}.rs", file.package_name()));
        OpenOptions::new()
            .append(true)
            .open(path)?
            .write_all(code.as_bytes())?;
    }
    Ok(())
}
