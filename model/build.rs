//! Lets binaries find libtorch without any environment: beside themselves (a copied folder made by `./run dist`),
//! else where this build found it.
fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/lib");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
