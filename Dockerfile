# The image of the agent, the controller and what tells the resizer of the driver.
#
#   docker build --tag drumlin:0.1.0 .
#
# The same checkout gives the same files: the compiler, the crates (Cargo.lock) and the Debian packages
# (manifests/image/packages) have one version each, and no path or time of the build is in them.
FROM rust:1.95.0-bookworm AS binary
WORKDIR /src
COPY . .
ENV CARGO_INCREMENTAL=0 RUSTFLAGS="--remap-path-prefix=/src=. --remap-path-prefix=/usr/local/cargo=cargo"
RUN cargo build --release --locked --package drumlin

FROM debian:bookworm-slim AS root
RUN apt-get update && apt-get install --yes --no-install-recommends mmdebstrap
COPY manifests/image /build
# Where the packages come from; http://deb.debian.org/debian when nothing is said:
#   docker build --build-arg DEBIAN_MIRROR=http://mirror.example.com/debian …
ARG DEBIAN_MIRROR
COPY --from=binary /src/target/release/drumlin /build/drumlin
RUN /build/rootfs /build/drumlin /build/root.tar && mkdir /image && tar -x -C /image -f /build/root.tar

FROM scratch
COPY --from=root /image /
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["drumlin"]
