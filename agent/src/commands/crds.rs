//! `drumlin crds`: the custom resource definitions.

use super::print::print;

/// Prints the definitions of all kinds, as one manifest.
pub(crate) fn run() {
    let documents: Vec<String> = drumlin_crd::crds()
        .iter()
        .chain(&drumlin_cluster::crds())
        .map(|(_, crd)| drumlin_crd::to_yaml(crd))
        .collect();
    print(&documents.join("---\n"));
}
