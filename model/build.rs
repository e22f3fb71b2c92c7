//! Lets binaries find libtorch without any environment: beside themselves (a copied folder made by `./run dist`),
//! else where this build found it. Tells the crate which libtorch version it is built for.

use std::{env, fs, path::Path};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/lib");
    let libtorch = env::var("LIBTORCH").ok();
    if let Some(libtorch) = &libtorch {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
    let version = libtorch.and_then(|libtorch| version(Path::new(&libtorch)));
    println!(
        "cargo:rustc-env=SKEIN_LIBTORCH_VERSION={}",
        version.as_deref().unwrap_or("unknown")
    );
}

/// `2.13.0` out of `#define TORCH_VERSION_MAJOR 2` and its neighbours.
fn version(libtorch: &Path) -> Option<String> {
    let header = fs::read_to_string(libtorch.join("include/torch/headeronly/version.h")).ok()?;
    let number = |name: &str| {
        header
            .lines()
            .find_map(|line| line.strip_prefix(&format!("#define TORCH_VERSION_{name} ")))
    };
    Some(
        [number("MAJOR")?, number("MINOR")?, number("PATCH")?]
            .map(str::trim)
            .join("."),
    )
}
