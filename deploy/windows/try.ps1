# SPDX-License-Identifier: Apache-2.0
<#
.SYNOPSIS
Runs Isthmus on this Windows host for about ten minutes, reports, and removes it again.

.DESCRIPTION
Starts isthmus-smoke.exe: it creates namespaces of HCN, starts isthmus-agent.exe, attaches pods through
isthmus-cni.exe, and runs isthmus-conformance.exe between two of them. No cluster, no container runtime and no
installation are needed. Reports are in -Out: smoke.json, report.json, report.txt, status.txt and agent.log. They
hold names of networks and addresses of this host; read them before you publish them.

With -Mode nat it asks the same on a NAT network, which the agent does not make: only isthmus-conformance.exe and the
durations of calls.

Packets of the corpus are sent for at most -PacketTime, and the report counts those that were left. All of them take up to 30m.

Without -Adapter, HNS puts the network on the adapter of the default route, and the host loses its connections for
seconds. loopback.ps1 adds an adapter that nothing else uses.

This script was not run on Windows by its authors. The programs that it starts were run under Wine.

.EXAMPLE
.\try.ps1 -Adapter isthmus-loopback -Out C:\report
#>
[CmdletBinding()]
param(
    # Directory of isthmus-agent.exe, isthmus-cni.exe, isthmusctl.exe, isthmus-conformance.exe and isthmus-smoke.exe.
    [string]$Bin = $PSScriptRoot,
    [string]$Out = (Join-Path (Get-Location) 'isthmus-report'),
    [ValidateSet('l2bridge', 'overlay', 'nat')]
    [string]$Mode = 'l2bridge',
    # Network adapter for the HNS network; empty for the host's own.
    [string]$Adapter = '',
    # A range that this host does not use.
    [string]$PodCIDR = '10.244.3.0/24',
    [string]$Network = 'isthmus-smoke',
    # How long packets of the corpus are sent at most, such as 3m or 30m; 0 for none.
    [string]$PacketTime = '3m'
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'

$identity = [Security.Principal.WindowsPrincipal][Security.Principal.WindowsIdentity]::GetCurrent()
if (-not $identity.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
    throw 'Run this script as administrator.'
}
if (-not (Get-Service -Name hns -ErrorAction SilentlyContinue)) {
    throw 'This host has no Host Network Service. On Windows Server: Install-WindowsFeature Containers, then restart.'
}
$Bin = (Resolve-Path $Bin).Path
foreach ($name in 'isthmus-agent', 'isthmus-cni', 'isthmusctl', 'isthmus-conformance', 'isthmus-smoke') {
    if (-not (Test-Path (Join-Path $Bin "$name.exe"))) {
        throw "$Bin has no $name.exe: give -Bin, the directory of an unpacked release, or run 'make build conformance'."
    }
}
if (Get-Process -Name isthmus-agent -ErrorAction SilentlyContinue) {
    throw 'An isthmus-agent runs on this host: stop it first.'
}
New-Item -ItemType Directory -Force -Path $Out | Out-Null
$Out = (Resolve-Path $Out).Path

$arguments = @('--bin', $Bin, '--out', $Out, '--mode', $Mode, '--pod-cidr', $PodCIDR, '--network', $Network, '--packet-time', $PacketTime)
if ($Adapter) { $arguments += @('--adapter', $Adapter) }

$code = -1
try {
    & (Join-Path $Bin 'isthmus-smoke.exe') @arguments
    $code = $LASTEXITCODE
}
finally {
    # isthmus-smoke.exe removes what it made. This is for a run that was interrupted.
    if ($code -eq -1) {
        Get-Process -Name isthmus-agent -ErrorAction SilentlyContinue |
            Where-Object { $_.Path -eq (Join-Path $Bin 'isthmus-agent.exe') } | Stop-Process -Force
        & (Join-Path $Bin 'isthmus-agent.exe') uninstall --force --hns-network $Network --state-dir (Join-Path $env:TEMP 'isthmus-try')
        & (Join-Path $Bin 'isthmus-smoke.exe') --remove --network $Network
    }
}
Write-Host "Reports: $Out"
exit $code
