# SPDX-License-Identifier: Apache-2.0
<#
.SYNOPSIS
Adds a loopback adapter to this Windows host, or removes it, so that networks of HNS need not use the host's own.

.DESCRIPTION
It needs devcon.exe, of the Windows Driver Kit, in the path. Where it is missing and Chocolatey is there, it installs
the package devcon.portable. This script was not run on Windows by its authors.

.EXAMPLE
.\loopback.ps1 -Name isthmus-loopback
.EXAMPLE
.\loopback.ps1 -Name isthmus-loopback -Remove
#>
[CmdletBinding()]
param(
    [string]$Name = 'isthmus-loopback',
    [string]$Address = '192.0.2.13',
    [switch]$Remove
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'

function Find-Devcon {
    foreach ($command in 'devcon64', 'devcon') {
        $found = Get-Command $command -ErrorAction SilentlyContinue
        if ($found) { return $found.Source }
    }
    return $null
}

$devcon = Find-Devcon
if (-not $devcon -and (Get-Command choco -ErrorAction SilentlyContinue)) {
    choco install devcon.portable --yes --no-progress | Out-Host
    $devcon = Find-Devcon
}
if (-not $devcon) {
    throw 'devcon.exe is not in the path: install the Windows Driver Kit, or add a loopback adapter by hand (hdwwiz.exe).'
}

$existing = Get-NetAdapter -Name $Name -ErrorAction SilentlyContinue
if ($Remove) {
    if ($existing) {
        & $devcon remove ('@' + $existing.PnPDeviceID) | Out-Host
        if ($LASTEXITCODE -ne 0) { throw "devcon remove ended with $LASTEXITCODE." }
    }
    exit 0
}
if ($existing) {
    Write-Host "Adapter $Name exists."
    exit 0
}
$before = @(Get-NetAdapter | ForEach-Object { $_.InterfaceGuid })
& $devcon install (Join-Path $env:windir 'inf\netloop.inf') '*MSLOOP' | Out-Host
if ($LASTEXITCODE -ne 0) { throw "devcon install ended with $LASTEXITCODE." }
$new = @()
for ($i = 0; $i -lt 30 -and $new.Count -eq 0; $i++) {
    Start-Sleep -Seconds 1
    $new = @(Get-NetAdapter | Where-Object { $before -notcontains $_.InterfaceGuid })
}
if ($new.Count -ne 1) { throw "devcon added $($new.Count) adapters, want 1." }
Rename-NetAdapter -InputObject $new[0] -NewName $Name
New-NetIPAddress -InterfaceAlias $Name -IPAddress $Address -PrefixLength 24 | Out-Null
Write-Host "Adapter $Name has address $Address."
