"""A chat page: Starlette and WebSockets in front of `shardkit.messaging.Chats`.

::

    browser ── {"key": "9f…", "text": "hi"} ──► this server ── send, listen ──► the chat's shard
       ▲                                             │
       └── {"sender": "ben", "body": {"key": …}} ◄───┘   acknowledged once it was sent

Any number of such servers can run, and any of them can be killed: what a user has not received is
in the chat, and comes when the page connects again, which it does by itself. The page keeps what
its user has sent until it comes back from the chat, and else sends it again. So a message may come
twice, also because a page that is opened gets what the chat still keeps: each has a random key from
the page that sent it, and is shown once.

    pip install 'shardkit[chat]'
    shardkit up configs/local.yaml
    SHARDKIT_CONFIG=redis://127.0.0.1:7100/0 uvicorn examples.chat_page:app

Then http://127.0.0.1:8000/?chat=lunch&user=anna
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import shardkit
from shardkit.messaging import Chats

COMPONENT = os.environ.get("CHAT_COMPONENT", "timelines")
LONGEST = 4000  # characters of a message
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Chat</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --line: light-dark(#d5d8dd, #3a3f47);
  --own: light-dark(#dcebff, #1d3a5f); --other: light-dark(#f0f1f3, #262a30);
  --muted: light-dark(#5b6270, #a3abb8) }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 45rem; height: 100dvh; display: flex; flex-direction: column;
  font: 1rem/1.4 system-ui, sans-serif }
header, form { display: flex; gap: .75rem; align-items: center; padding: .75rem 1rem }
header { justify-content: space-between; border-bottom: 1px solid var(--line) }
h1 { font-size: 1.15rem; margin: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
#state { margin: 0; font-size: .85rem; color: var(--muted); white-space: nowrap }
#state::before { content: "\\25cf"; margin-right: .4em; color: #c77700 }
#state.connected::before { color: #1a8f4a }
#messages { flex: 1; overflow-y: auto; margin: 0; padding: 1rem; list-style: none;
  display: flex; flex-direction: column; gap: .5rem }
li { max-width: 80%; padding: .45rem .75rem; border-radius: .75rem; background: var(--other);
  align-self: flex-start; overflow-wrap: anywhere; white-space: pre-wrap }
li.own { align-self: flex-end; background: var(--own) }
li.waiting { opacity: .55 }
b { display: block; font-size: .8rem; color: var(--muted) }
form { border-top: 1px solid var(--line) }
input, button { font: inherit; padding: .5rem .75rem; border-radius: .5rem;
  border: 1px solid var(--line) }
input { flex: 1; min-width: 0 }
</style>
<header><h1 id="title"></h1><p id="state" role="status">connecting</p></header>
<ul id="messages" aria-live="polite"></ul>
<form id="form"><input id="text" aria-label="Message" placeholder="Message" maxlength="4000"
  autocomplete="off" autofocus><button>Send</button></form>
<script>
const asked = new URLSearchParams(location.search)
const chat = asked.get("chat") || "lobby", user = asked.get("user") || "guest"
const state = document.getElementById("state"), list = document.getElementById("messages")
const shown = new Set(), unsent = new Map()  // by the key that this page gives each message
let socket = null
document.title = document.getElementById("title").textContent = user + " in " + chat
function add(sender, text, id) {
  const item = document.createElement("li"), name = document.createElement("b")
  name.textContent = sender
  item.className = sender === user ? "own" : ""
  item.dataset.id = id
  item.append(name, text)
  list.insertBefore(item, [...list.children].find(each => Number(each.dataset.id) > id) || null)
  list.scrollTop = list.scrollHeight
  return item
}
function connect() {
  const path = "/ws/" + encodeURIComponent(chat) + "/" + encodeURIComponent(user)
  socket = new WebSocket(location.origin.replace(/^http/, "ws") + path)
  socket.onopen = () => {
    state.textContent = state.className = "connected"
    unsent.forEach(({text}, key) => socket.send(JSON.stringify({key, text})))
  }
  socket.onmessage = event => {
    const {id, sender, body} = JSON.parse(event.data)
    if (unsent.has(body.key)) {
      unsent.get(body.key).item.remove()
      unsent.delete(body.key)
    }
    if (shown.has(body.key)) return
    shown.add(body.key)
    add(sender, body.text, id)
  }
  socket.onclose = () => {
    state.textContent = state.className = "connecting"
    setTimeout(connect, 500)
  }
}
document.getElementById("form").onsubmit = event => {
  event.preventDefault()
  const input = document.getElementById("text"), text = input.value
  if (!text) return
  const bytes = crypto.getRandomValues(new Uint8Array(12))
  const key = Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("")
  unsent.set(key, {text, item: add(user, text, Infinity)})
  unsent.get(key).item.classList.add("waiting")
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({key, text}))
  input.value = ""
}
connect()
</script></html>
"""


async def page(_: Request) -> HTMLResponse:
    """The page; it finds its chat and user in its address."""
    return HTMLResponse(PAGE)


async def talk(socket: WebSocket) -> None:
    """Carry messages between a browser and a chat until either side ends."""
    chats: Chats[Any] = socket.app.state.chats
    chat, user = socket.path_params["chat"], socket.path_params["user"]
    await socket.accept()
    if await chats.create(user, [], chat=chat, history=100) is None:
        await chats.join(chat, user)

    async def send() -> None:
        try:
            for message in reversed(await chats.history(chat, 100)):
                await socket.send_json(message._asdict())
            async for message in chats.listen(chat, user):
                await socket.send_json(message._asdict())
        finally:
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close()

    sending = asyncio.create_task(send())
    try:
        while True:  # also what came before the browser was gone
            message = await socket.receive_json()
            body = {"key": str(message["key"])[:100], "text": str(message["text"])[:LONGEST]}
            await chats.send(chat, user, body)
    except WebSocketDisconnect:
        pass
    finally:
        sending.cancel()
        await asyncio.wait([sending])


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    async with await shardkit.aconnect() as kit:
        app.state.chats = kit.chats(component=COMPONENT)
        yield


app = Starlette(
    routes=[Route("/", page), WebSocketRoute("/ws/{chat}/{user}", talk)], lifespan=_lifespan
)
