//! Clients that are made of the document, used for real.

use std::fs;
use std::process::Command;

use sandkasten_e2e::Lab;

use crate::tools::{self, must};

#[test]
fn a_generated_python_client_works() {
    let lab = Lab::shared();
    let (dir, document) = tools::document(&lab);
    let mut generate = tools::program("openapi-python-client");
    generate.arg("generate").arg("--path").arg(document).arg("--meta").arg("none");
    generate.arg("--output-path").arg(dir.path().join("generated"));
    generate.arg("--config").arg(tools::file("python_client.yaml"));
    let output = must(&mut generate);
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(!said.concat().to_lowercase().contains("warning"), "{}", said.concat());
    let mut run = Command::new(tools::python());
    run.arg(tools::file("generated_client.py")).arg(format!("http://{}", lab.client.addr));
    run.arg(lab.client.key.clone().unwrap_or_default()).env("PYTHONPATH", dir.path());
    must(run.env("NO_PROXY", "*").env("no_proxy", "*"));
}

#[test]
fn generated_typescript_types_are_right() {
    let lab = Lab::shared();
    let (dir, document) = tools::document(&lab);
    for name in ["program.ts", "tsconfig.json", "node.d.ts"] {
        fs::copy(tools::file("node").join(name), dir.path().join(name)).expect("copy");
    }
    let modules = tools::packages().join("node_modules");
    std::os::unix::fs::symlink(modules, dir.path().join("node_modules")).expect("link");
    fs::write(dir.path().join("package.json"), r#"{"type":"module"}"#).expect("package.json");
    let mut generate = tools::node("openapi-typescript/bin/cli.js");
    let output = must(generate.arg(document).arg("-o").arg(dir.path().join("api.d.ts")));
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(!said.contains("warn"), "{said}");
    must(tools::node("typescript/bin/tsc").arg("-p").arg(dir.path()));
    let mut run = tools::bare_node();
    run.arg("--experimental-strip-types").arg("--no-warnings").arg(dir.path().join("program.ts"));
    run.arg(format!("http://{}", lab.client.addr)).arg(lab.client.key.clone().unwrap_or_default());
    must(&mut run);
}
