# Thin wrappers; nothing here is needed to build or test.

# Formatting, lints, dependencies, documentation.
check:
    cargo fmt --all -- --check
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
    cargo deny check bans licenses sources
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --locked --document-private-items

# Formats all code.
fmt:
    cargo fmt --all

# The tests whose names contain FILTER, over thin, linear, raid1, directory, kubernetes or cluster: just over thin interruption::
over KIND FILTER:
    tests/run --over {{KIND}} {{FILTER}}

# A shell, or one command, beside an agent that runs, over directory, thin, linear, raid1 or kubernetes: just lab thin
lab KIND *COMMAND:
    tests/lab/shell {{KIND}} {{COMMAND}}

# One object applied beside an API server and an agent; shown when it is ready: just object examples/quickstart/1-volume.yaml
object FILE:
    tests/lab/object {{FILE}}

# The traces of the calls that one manifest leads to, as trees with milliseconds: just trace examples/quickstart/1-volume.yaml thin NodeStageVolume
trace FILE KIND="directory" METHOD="":
    tests/lab/trace {{KIND}} {{FILE}} {{METHOD}}

# A flame graph of the agent in a section of the benchmark, target/flame.svg; needs perf and inferno (cargo install inferno).
flame SECTION="calls":
    CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo build --release --package drumlin --package drumlin-tests --bins
    perf record --output target/flame.data -F 499 --call-graph dwarf,16384 -- "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" {{SECTION}}
    perf script --input target/flame.data --comm drumlin | inferno-collapse-perf | inferno-flamegraph > target/flame.svg

# The documentation of the code, private items too; opens at the architecture.
doc:
    cargo doc --workspace --no-deps --locked --document-private-items
    cargo doc --package drumlin --no-deps --locked --document-private-items --open

# Every test there is, as root.
test *ARGS:
    tests/run {{ARGS}}

# The upstream conformance tool, as root.
sanity:
    cargo test --package drumlin-tests --test sanity -- --nocapture

# What the specifications ask for: how much of it is tested, and what is not met and why.
# With "--mutate N [SEED]", as root: whether N tests, or all, would notice a violation of the statement that they show.
conformance *ARGS="table":
    cargo run --quiet --package drumlin-tests --bin conformance -- {{ARGS}}

# Speed and memory beside the bare programs, as root.
bench *ARGS:
    cargo run --release --package drumlin-tests --bin bench -- {{ARGS}}

# A thousand manifests: made beside the bare calls, changed, planned, and with nothing to do.
bench-manifests:
    cargo run --release --package drumlin-tests --bin bench -- manifests

# The speed of the LVM back end beside LVM's own commands, in the lab.
bench-lvm:
    cargo build --release --package drumlin --package drumlin-tests --bins
    DRUMLIN_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drumlin" tests/lab/vm/run -m 4G -t 3600 "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" lvm

# What encryption costs, in the lab.
bench-encryption:
    cargo build --release --package drumlin --package drumlin-tests --bins
    DRUMLIN_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drumlin" tests/lab/vm/run -m 4G -t 900 "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" encryption-lvm

# Changed blocks of snapshots, over image files and in the lab.
bench-changed:
    cargo run --release --package drumlin-tests --bin bench -- changed
    cargo build --release --package drumlin --package drumlin-tests --bins
    DRUMLIN_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drumlin" tests/lab/vm/run -m 4G -t 3600 "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" changed-lvm

# How long the writers of a group of volumes wait, over image files and in the lab.
bench-groups:
    cargo run --release --package drumlin-tests --bin bench -- groups
    cargo build --release --package drumlin --package drumlin-tests --bins
    DRUMLIN_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drumlin" tests/lab/vm/run -m 4G -t 3600 "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" groups-lvm

# How soon objects are ready beside an API server, and what very many agents cost it (half an hour).
bench-kubernetes:
    cargo build --release --package drumlin-tests --bins
    tests/lab/apiserver/run -- "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" kubernetes

# In a cluster with a real kubelet: how soon pods have their volumes, what the front adds, memory, writes while nothing happens
# (half an hour).
bench-cluster *PARTS:
    cargo build --release --package drumlin --package drumlin-tests --bins
    DRUMLIN_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drumlin" tests/lab/cluster/run -n 1 -- "${CARGO_TARGET_DIR:-$PWD/target}/release/bench" cluster {{PARTS}}

# Writes the committed Helm chart anew, from the manifests.
chart:
    cargo run --quiet --package drumlin-tests --bin chart -- manifests/chart

# Writes the committed custom resource definitions anew.
crds:
    DRUMLIN_UPDATE=1 cargo test --package drumlin-crd
