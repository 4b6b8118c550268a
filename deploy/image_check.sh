#!/usr/bin/env bash
# Build the Dockerfile and check that the image serves, without a registry or a daemon: buildah builds
# in a chroot. The base image is a Debian with its own Python, named like the official Python image.
#
#   deploy/image_check.sh BUNDLE [option of `buildah bud` ...]
#
# Needs root, the Debian packages buildah and debootstrap, and a network for Debian's and Python's
# packages; takes minutes. The base image stays in the image store for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=$(realpath "$1")
shift
python=$(sed -n 's/^ARG PYTHON=//p' Dockerfile)
base="docker.io/library/python:$python"
image=localhost/keymatch:check
port=${PORT:-8123}
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}
work=$(mktemp -d)
container= server=
stop() {
  [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || true
  [ -z "$container" ] || buildah rm "$container" >/dev/null
  rm -rf "$work"
}
trap stop EXIT

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
    bookworm "$work/root" >/dev/null
  ln -s python3 "$work/root/usr/bin/python"
  container=$(buildah from scratch)
  buildah add -q "$container" "$work/root" / >/dev/null
  buildah commit -q "$container" "$base" >/dev/null
  buildah rm "$container" >/dev/null
  container=
fi
buildah rmi "$image" >/dev/null 2>&1 || true # from this script's last run
buildah bud --format docker --pull-never -q -t "$image" "$@" .
buildah images --format '{{.Name}} {{.Size}}' | sed "s,^,image: ,"

container=$(buildah from --pull-never "$image")
read -ra entry <<<"$(buildah inspect --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}' "$container")"
read -ra options <<<"$(buildah inspect --format '{{range .OCIv1.Config.Cmd}}{{.}} {{end}}' "$container")"
install -d -o 10001 -g 10001 "$work/state" "$work/bundles"
inside=(buildah run -v "$bundle:/bundle:ro" -v "$work/bundles:/bundles" -v "$work/state:/state"
  "$container" --)
run=("${inside[@]}" "${entry[@]}")

if "${run[@]}" "${options[@]}" 2>"$work/refused"; then
  echo "the image starts on a public address without API keys" >&2
  exit 1
fi
grep -e --allow-anonymous "$work/refused" # the error message names the option

"${run[@]}" serve --bundle /bundle --bundles /bundles --state /state --host 127.0.0.1 --port "$port" 2>"$work/log" &
server=$!
for _ in $(seq 120); do
  curl -sf "http://127.0.0.1:$port/health/ready" && break
  kill -0 "$server" || { cat "$work/log"; exit 1; }
  sleep 0.5
done
curl -sf -H 'Content-Type: application/json' -d '{"queries": ["hydrophobia"], "top_k": 2}' \
  "http://127.0.0.1:$port/predict"
echo
curl -sf -H 'Content-Type: application/json' -d '{"bundle": "next"}' \
  "http://127.0.0.1:$port/admin/snapshot"
test -f "$work/bundles/next/manifest.json"
if "${inside[@]}" python -c 'import torch' 2>/dev/null; then
  echo "torch is in the image" >&2
  exit 1
fi
"${inside[@]}" id -u | grep -qx 10001
echo "image check passed"
