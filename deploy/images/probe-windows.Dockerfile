# SPDX-License-Identifier: Apache-2.0
#
# The image of Windows pods of isthmusctl connectivity: isthmusctl.exe of a release on a base of the nodes' Windows version.
# It runs nothing at build time, so that Linux hosts can build it (docs/operate/connectivity.md):
#   docker buildx build --platform windows/amd64 --build-arg BASE=mcr.microsoft.com/windows/nanoserver:ltsc2025 \
#     -f probe-windows.Dockerfile -t registry.example/isthmusctl:0.2.0-ltsc2025 --push DIRECTORY
ARG BASE=mcr.microsoft.com/windows/nanoserver:ltsc2022
FROM ${BASE}
COPY isthmusctl.exe /isthmusctl.exe
USER ContainerUser
ENTRYPOINT ["C:\\isthmusctl.exe"]
