# syntax=docker/dockerfile:1

# The picker as a container image:
#
#   docker build --tag sluice-epp:0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# It needs BuildKit, for the caches.

# As in rust-toolchain.toml, which is left out so that rustup installs no second toolchain. The same Debian as below: the
# binary needs a C library that is not older than that of the builder.
FROM docker.io/library/rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
# What cargo has downloaded and built stays between builds: dependencies are compiled again only when they change. Cargo
# tells by the time of a file whether it has changed, and another build that used the cache may have begun later with
# older sources: those of the picker itself are always compiled.
RUN --mount=type=cache,id=sluice-epp-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=sluice-epp-target,target=/src/target,sharing=locked \
    find Cargo.toml crates src xtask -type f -exec touch {} + && \
    cargo build --locked --release --package epp --bin epp && \
    install -D --mode=0755 target/release/epp /app/epp

FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sluice EPP" \
      org.opencontainers.image.description="An endpoint picker for LLM inference gateways" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /app/epp /app/epp
COPY LICENSE /app/LICENSE
USER 65532:65532
EXPOSE 9002 9003 9090
ENTRYPOINT ["/app/epp"]
