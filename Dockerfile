# The image of the agent and the controller.
#
#   docker build --tag drumlin:0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --tag drumlin:0.1.0 .
#
# The same checkout gives the same files: the compiler, the crates (Cargo.lock) and the Debian packages
# (manifests/image/packages) have one version each, and no path or time of the build is in them. Nothing of another
# architecture is run: the compiler is this machine's, and packages are only unpacked.
FROM --platform=$BUILDPLATFORM rust:1.95.0-bookworm AS binary
WORKDIR /src
ARG TARGETARCH
COPY manifests/image manifests/image
RUN . manifests/image/cross.sh && apt-get update && \
    apt-get install --yes --no-install-recommends $(cross_packages "$TARGETARCH")
COPY . .
ENV CARGO_INCREMENTAL=0 RUSTFLAGS="--remap-path-prefix=/src=. --remap-path-prefix=/usr/local/cargo=cargo"
RUN . manifests/image/cross.sh && build_for "$TARGETARCH" && \
    cargo build --release --locked --package drumlin --target "$target" && \
    mv "target/$target/release/drumlin" /drumlin

FROM --platform=$BUILDPLATFORM debian:bookworm-slim AS root
RUN apt-get update && apt-get install --yes --no-install-recommends mmdebstrap
COPY manifests/image /build
# Where the packages come from; http://deb.debian.org/debian when nothing is said:
#   docker build --build-arg DEBIAN_MIRROR=http://mirror.example.com/debian …
ARG DEBIAN_MIRROR
ARG TARGETARCH
COPY --from=binary /drumlin /build/drumlin
RUN /build/rootfs /build/drumlin /build/root.tar "$TARGETARCH" && mkdir /image && tar -x -C /image -f /build/root.tar

FROM scratch
COPY --from=root /image /
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["drumlin"]
