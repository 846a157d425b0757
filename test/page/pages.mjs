// SPDX-License-Identifier: Apache-2.0
//
// node pages.mjs SMALL LARGE LIVE IMAGES: tests of the web pages in Chromium. SMALL is the address of the pages about
// deploy/examples/hospital, which have an agent with flows, LARGE of those about 10,000 pods, which have none, LIVE of those of a relay. Screenshots are written to the directory IMAGES.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { chromium } from 'playwright-core'

const [small, large, live, images] = process.argv.slice(2)
const axe = readFileSync('node_modules/axe-core/axe.min.js', 'utf8')
const mostBytes = 80_000
const mostPaint = 2000 // milliseconds

const explained = 'explain?from=reception/portal-0&to=records/chartdb-0&port=5432&protocol=TCP'
const pages = ['', 'reach', 'reach?port=5432&protocol=TCP', 'reach/reception/records', 'reach/reception/records/pods?from=Deployment/portal&to=StatefulSet/chartdb',
  'explain', explained, 'explain?from=reception/portal-0&to=nowhere&port=1', 'policies', 'policies?find=none', 'policies/NetworkPolicy/reception/portal-to-services', 'nodes', 'inexact', 'reach/nowhere/records', 'flows', 'flows?namespace=shop', 'flows?namespace=A']
const largePages = ['', 'reach', 'reach?port=80&row=4&column=6', 'reach/ns-1/ns-2', 'reach/ns-1/ns-2/pods?from=Pod/pod-60&to=Pod/pod-101', 'policies?part=7', 'nodes?part=3',
  'explain?from=ns-1/pod-60&to=ns-2/pod-101&port=80']

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] })

// open returns a page whose faults are collected: errors of the page and its console, dialogs, and requests to other servers.
async function open (options = {}) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 640 }, ...options })
  const page = await context.newPage()
  const faults = []
  page.on('pageerror', e => faults.push(`error: ${e.message}`))
  page.on('console', m => { if (m.type() === 'error' && !/status of (40\d|503)/.test(m.text())) faults.push(`console: ${m.text()}`) })
  page.on('dialog', d => { faults.push(`dialog: ${d.message()}`); d.dismiss() })
  page.on('request', r => { if (![small, large, live].some(a => r.url().startsWith(a))) faults.push(`request to ${r.url()}`) })
  return { page, context, faults }
}

// ready waits until the page about inexact constructs is computed.
async function ready (page, base) {
  for (let end = Date.now() + 60_000; ; await page.waitForTimeout(200)) {
    await page.goto(base + 'inexact')
    if (!(await page.locator('main').textContent()).includes('being computed')) return
    assert.ok(Date.now() < end, 'the page about inexact constructs is not computed within a minute')
  }
}

let violations = 0
const tests = []
const test = (name, run, context = {}) => tests.push({ name, run, context })

test('the path from namespaces to an explanation, by keyboard alone', async ({ page }) => {
  await page.goto(small)
  await page.keyboard.press('Tab')
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content')
  const follow = async link => {
    for (let i = 0; i < 200; i++) { // until the focus is there
      await page.keyboard.press('Tab')
      if (await link.evaluate(e => e === document.activeElement)) break
    }
    assert.ok(await link.evaluate(e => e === document.activeElement), 'the focus does not reach the link')
    assert.notEqual(await link.evaluate(e => getComputedStyle(e).outlineStyle), 'none', 'the focus is not visible')
    await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')])
  }
  const cell = async (row, column) => {
    const at = await page.locator('thead th').evaluateAll((all, want) => all.findIndex(e => e.textContent.startsWith(want)), column)
    return page.getByRole('row').filter({ has: page.getByRole('rowheader', { name: row }) }).locator('td').nth(at - 1).locator('a')
  }
  await follow(page.getByRole('link', { name: 'Who reaches whom' }).first())
  await follow(await cell('reception', 'records'))
  assert.match(page.url(), /\/reach\/reception\/records$/)
  await follow(await cell('Deployment/portal', 'StatefulSet/chartdb'))
  await follow(await cell('portal-0', 'chartdb-0'))
  assert.match(page.url(), /explain\?from=reception%2Fportal-0.*to=records%2Fchartdb-0/)
  assert.match(await page.locator('.verdict').textContent(), /^Denied: reception\/portal-0/)
  assert.match(await page.locator('main').textContent(), /11-reception-policies\.yaml:\d+/)
  assert.match(await page.locator('pre').first().textContent(), /egress:\n {2}- to:/)
})

test('tables, forms and links without JavaScript', async ({ page }) => {
  await page.goto(small + 'reach')
  await page.getByLabel('Port').fill('5432')
  await page.getByLabel('Rows with').fill('re')
  await page.getByRole('button', { name: 'Show' }).click()
  assert.match(page.url(), /[?&]port=5432/)
  assert.equal(await page.getByRole('rowheader').count(), 2)
  const saved = page.url()
  await page.goto(small)
  await page.goto(saved)
  assert.equal(await page.getByLabel('Rows with').inputValue(), 're')
  await page.goto(small + 'explain')
  await page.getByLabel('From', { exact: true }).fill('reception/portal-0')
  await page.getByLabel('To', { exact: true }).fill('records/charts-api-0')
  await page.getByLabel('Port').fill('8080')
  await page.getByRole('button', { name: 'Explain' }).click()
  assert.match(await page.locator('.verdict').textContent(), /^Allowed:/)
}, { javaScriptEnabled: false })

for (const colorScheme of ['light', 'dark']) {
  test(`axe finds nothing, ${colorScheme}`, async ({ page }) => {
    await ready(page, small)
    for (const address of pages) {
      await page.goto(small + address)
      await page.evaluate(axe)
      const found = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }))
      for (const v of found.violations) {
        violations++
        console.log(`axe: /${address} ${v.impact} ${v.id}: ${v.help}: ${v.nodes.map(n => n.html).slice(0, 3).join(' ')}`)
      }
      assert.ok(found.passes.length > 10, `axe checked only ${found.passes.length} rules`)
    }
    assert.equal(violations, 0)
  }, { colorScheme })
}

// The page of denied flows is the same one, at the relay and at isthmusctl ui.
for (const [name, base, context] of [['relay', live, { httpCredentials: { username: 'any', password: 'token' } }], ['isthmusctl ui', small, {}]]) {
  test(`${name}: new denied flows appear, and can be paused`, async ({ page }) => {
    await page.goto(base + 'flows')
    await page.getByText('New flows appear by themselves.').or(page.getByText('Node n1: connected')).waitFor()
    const rows = page.locator('#flows tr')
    await page.waitForFunction(() => document.querySelectorAll('#flows tr').length >= 6)
    assert.match(await rows.first().textContent(), /shop\/web-\d+<script>alert\(1\)<\/script>pay\/apiTCP 443isolated for ingress/)
    await page.getByRole('button', { name: 'Pause' }).press('Enter')
    const before = await rows.count()
    await page.waitForTimeout(1500) // seven flows
    assert.equal(await rows.count(), before)
    await page.getByRole('button', { name: 'Continue' }).press('Enter')
    await page.waitForFunction(n => document.querySelectorAll('#flows tr').length > n, before)
    for (const address of ['flows', 'flows?namespace=shop', 'flows?namespace=A']) {
      await page.goto(base + address)
      await page.evaluate(axe)
      const found = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }))
      violations += found.violations.length
      assert.deepEqual(found.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' ')}`), [], `axe: ${address}`)
    }
  }, context)

  test(`${name}: denied flows without JavaScript`, async ({ page }) => {
    await page.goto(base + (base === live ? '' : 'flows')) // the first page of the relay
    assert.match(page.url(), /\/flows$/)
    assert.equal(await page.locator('#flows tr').count(), 2)
    assert.equal(await page.getByRole('button', { name: 'Pause' }).isVisible(), false)
    await page.getByLabel('Namespace').fill('shop')
    await page.getByRole('button', { name: 'Show' }).press('Enter')
    await page.waitForURL(/\/flows\?namespace=shop$/)
    assert.equal(await page.locator('#flows tr').count(), 2)
  }, { javaScriptEnabled: false, ...context })
}

test('isthmusctl ui without an agent and a relay says what to give', async ({ page }) => {
  const answer = await page.goto(large + 'flows')
  assert.equal(answer.status(), 503)
  assert.match(await page.getByRole('alert').textContent(), /no such file or directory: for the flows of all nodes start isthmusctl ui with --relay tls:\/\/HOST:PORT/)
  assert.equal(await page.locator('table, script').count(), 0)
})

test('the relay: from namespaces to an explanation, and which nodes do not answer', async ({ page }) => {
  await page.goto(live)
  await page.getByRole('link', { name: 'Who reaches whom' }).press('Enter')
  await page.waitForURL(/\/reach$/)
  const bytes = []
  for (const address of ['reach', 'reach?port=5432', 'reach/reception/records', 'reach/reception/records/pods?from=Deployment/portal&to=StatefulSet/chartdb', 'reach/nowhere/records',
    'reach/A/records', 'explain', explained, 'explain?from=reception/portal-0&to=nowhere&port=1', 'policies', 'policies?namespace=records', 'policies?namespace=A',
    'policies/NetworkPolicy/reception/portal-to-services', 'policies/NetworkPolicy/reception/none', 'nodes', 'inexact', 'inexact?namespace=nowhere']) {
    const answer = await page.goto(live + address)
    bytes.push((await answer.body()).length)
    if (answer.status() === 200) assert.match(await page.locator('main').textContent(), /1 of 3 nodes do not answer, so that what they enforce is not known: n3/, address)
    const empty = await page.locator('td, th').evaluateAll(all => all.filter(e => e.textContent.trim() === '').map(e => e.outerHTML))
    assert.deepEqual(empty, [], address)
    await page.evaluate(axe)
    const found = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }))
    violations += found.violations.length
    assert.deepEqual(found.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' ')}`), [], `axe: ${address}`)
  }
  assert.ok(Math.max(...bytes) < mostBytes, `${Math.max(...bytes)} bytes`)
  await page.goto(live + explained)
  const text = await page.locator('main').textContent()
  assert.match(text, /Enforced by kernel 6\.1\s*as allow: rows: row 3 differs/)
  assert.match(text, /node n3 does not answer: this is what the policies say/)
  assert.match(await page.locator('pre').first().textContent(), /egress:\n {2}- to:/)
  await page.getByRole('link', { name: 'Denied flows' }).press('Enter')
  await page.waitForURL(live + 'flows')
}, { httpCredentials: { username: 'any', password: 'token' } })

test('the relay: what policies decided, and the state of nodes, by keyboard and without JavaScript', async ({ page }) => {
  await page.goto(live)
  await page.getByRole('link', { name: 'Policies' }).press('Enter')
  await page.waitForURL(/\/policies$/)
  const main = page.locator('main')
  assert.match(await main.textContent(), /Linux nodes count new flows: numbers of 1 of 2 nodes\./)
  assert.match(await main.textContent(), /Windows nodes count packets, not flows, if their agents have --rule-counters: numbers of 1 of 1 node\./)
  assert.match(await main.textContent(), /Without numbers: n3 \(connection refused\)/)
  await page.getByLabel('Namespace').fill('reception')
  await page.getByRole('button', { name: 'Show' }).press('Enter')
  await page.waitForURL(/namespace=reception/)
  await page.getByRole('link', { name: 'NetworkPolicy reception/portal-from-outside' }).press('Enter')
  await page.waitForURL(/\/policies\/NetworkPolicy\/reception\/portal-from-outside$/)
  assert.match(await page.getByRole('row').filter({ has: page.getByRole('rowheader', { name: 'ingress rule 0' }) }).textContent(),
    /7 allowed, 0 denied \(1 node, 1 missing\)at least 7 allowed, 0 denied \(1 node\)/)
  await page.getByRole('link', { name: 'Nodes' }).press('Enter')
  await page.waitForURL(/\/nodes$/)
  const row = name => page.getByRole('row').filter({ has: page.getByRole('rowheader', { name, exact: true }) }).textContent()
  assert.match(await row('n1'), /linux kernel 6\.1.*yesv1pods: tcx \(3\)nonerows: row 3/)
  assert.match(await row('n2'), /windows.*nov1not reportedthe disk is fullnone/)
  assert.match(await row('n3'), /no answer.*connection refused/)
  await page.getByRole('link', { name: 'Not exact' }).press('Enter')
  await page.waitForURL(/\/inexact$/)
  assert.match(await main.textContent(), /Reported by 2 of 3 nodes\..*windows \(hns 9\.5\) over-blocks: this HNS refuses it \(1 node: n2\)/s)
}, { javaScriptEnabled: false, httpCredentials: { username: 'any', password: 'token' } })

test('nothing depends on colour: each cell has words', async ({ page }) => {
  for (const address of pages) {
    await page.goto(small + address)
    const empty = await page.locator('td, th').evaluateAll(all => all.filter(e => e.textContent.trim() === '').map(e => e.outerHTML))
    assert.deepEqual(empty, [], address)
  }
})

test('no page is wider than a small screen', async ({ page }) => {
  for (const address of pages) {
    await page.goto(small + address)
    const wide = await page.evaluate(() => document.documentElement.scrollWidth)
    assert.ok(wide <= 320, `/${address} is ${wide} pixels wide`)
  }
}, { viewport: { width: 320, height: 600 } })

test('no cookies, and a policy that forbids other content', async ({ page, context }) => {
  const answer = await page.goto(small)
  assert.match(answer.headers()['content-security-policy'], /^default-src 'self';/)
  assert.deepEqual(await context.cookies(), [])
  const blocked = await page.evaluate(() => new Promise(resolve => {
    document.addEventListener('securitypolicyviolation', e => resolve(e.effectiveDirective))
    const script = document.createElement('script')
    script.textContent = 'window.ran = true'
    document.body.append(script)
    setTimeout(() => resolve('nothing was blocked'), 10_000)
  }))
  assert.match(blocked, /^script-src/)
  assert.equal(await page.evaluate(() => window.ran), undefined)
}, { expected: /Content Security Policy/ })

test(`10,000 pods: below ${mostBytes} bytes, first paint below ${mostPaint} ms`, async ({ page }) => {
  let bytes = 0
  let paint = 0
  for (const address of largePages) {
    const answer = await page.goto(large + address)
    assert.equal(answer.status(), 200, address)
    const size = (await answer.body()).length
    assert.ok(size < mostBytes, `/${address} has ${size} bytes`)
    bytes = Math.max(bytes, size)
    await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length > 0)
    const at = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime)
    assert.ok(at < mostPaint, `/${address}: first paint after ${at} ms`)
    paint = Math.max(paint, at)
  }
  await page.goto(large)
  assert.match(await page.locator('main').textContent(), /Pods under policy\s*10000/)
  console.log(`10,000 pods: largest page ${bytes} bytes, latest first paint ${Math.round(paint)} ms`)
})

test('screenshots', async ({ page }) => {
  for (const [name, address, height] of [['reach', 'reach', 700], ['explain', explained, 700]]) {
    await page.setViewportSize({ width: 900, height })
    await page.goto(small + address)
    await page.screenshot({ path: `${images}/page-${name}.png`, clip: { x: 0, y: 0, width: 900, height } })
  }
})

let passed = 0
for (const { name, run, context: { expected, ...context } } of tests) {
  const opened = await open(context)
  try {
    await run(opened)
    assert.deepEqual(opened.faults.filter(f => !expected?.test(f)), [])
    passed++
    console.log(`ok   ${name}`)
  } catch (e) {
    console.log(`FAIL ${name}\n     ${e.stack}`)
  }
  await opened.context.close()
}
await browser.close()
console.log(`page: ${passed} passed, ${tests.length - passed} failed; axe: ${violations} violations`)
process.exit(passed === tests.length && violations === 0 ? 0 : 1)
