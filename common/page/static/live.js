// SPDX-License-Identifier: Apache-2.0
//
// Adds new flows to the table. Without it the page is complete, and shows them after it is loaded again.
'use strict'
{
  const most = 200 // rows
  const live = document.getElementById('live')
  const pause = document.getElementById('pause')
  const table = document.getElementById('flows')
  const shown = document.getElementById('shown')
  const lost = document.getElementById('lost')
  let paused = false
  const events = new EventSource(live.dataset.events)
  const say = text => { if (live.textContent !== text) live.textContent = text }

  events.onopen = () => say('New flows appear by themselves.')
  events.onerror = () => say(events.readyState === EventSource.CLOSED
    ? 'No new flows: load the page again.'
    : 'The connection is lost: trying again. Some flows may be missing.')
  events.addEventListener('flow', e => {
    if (paused) return
    const flow = JSON.parse(e.data)
    const row = document.createElement('tr')
    const cell = (kind, text) => { const c = document.createElement(kind); c.textContent = text; row.append(c); return c }
    cell('th', flow.time).scope = 'row'
    for (const text of [flow.from, flow.to, flow.port || 'none', flow.why || 'unknown', flow.node || 'hidden']) cell('td', text)
    table.prepend(row)
    while (table.rows.length > most) table.deleteRow(-1)
    shown.textContent = table.rows.length
  })
  events.addEventListener('lost', e => {
    lost.textContent = Number(lost.textContent) + JSON.parse(e.data)
    say(`${JSON.parse(e.data)} flows were lost before they arrived.`)
  })
  events.addEventListener('node', e => say(`Node ${JSON.parse(e.data)}`))
  events.addEventListener('end', e => { events.close(); say(`No new flows: ${JSON.parse(e.data)}`) })
  pause.hidden = false
  pause.addEventListener('click', () => {
    paused = !paused
    pause.textContent = paused ? 'Continue' : 'Pause'
    say(paused ? 'Paused: new flows are left out.' : 'New flows appear by themselves.')
  })
}
