"""A chat page: Starlette and WebSockets in front of `shardkit.messaging.Chats`.

::

    browser ── WebSocket /ws/<chat>/<user>?after=<id> ──► this server ── listen ──► the chat's shard
       ▲                                                       │
       └──────────── {"id": 7, "sender": "ben", …} ◄───────────┘   acknowledged once it was sent

Any number of such servers can run, and any of them can be killed: what a user has not received is
in the chat, and comes when the page connects again, which it does by itself. A message that was
sent and not acknowledged yet may come twice; the page knows its id, and shows it once.

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
<h1 id="title"></h1><p id="state">connecting</p><ul id="messages"></ul>
<form id="form"><input id="text" autocomplete="off" autofocus><button>Send</button></form>
<script>
const asked = new URLSearchParams(location.search)
const chat = asked.get("chat") || "lobby", user = asked.get("user") || "guest"
const state = document.getElementById("state"), seen = new Set()
let socket = null, unsent = []
document.getElementById("title").textContent = chat + " as " + user
function connect() {
  const path = "/ws/" + encodeURIComponent(chat) + "/" + encodeURIComponent(user)
  socket = new WebSocket(location.origin.replace(/^http/, "ws") + path)
  socket.onopen = () => {
    state.textContent = "connected"
    unsent.splice(0).forEach(text => socket.send(text))
  }
  socket.onmessage = event => {
    const message = JSON.parse(event.data)
    if (seen.has(message.id)) return
    seen.add(message.id)
    const item = document.createElement("li")
    item.textContent = message.sender + ": " + message.body
    document.getElementById("messages").append(item)
  }
  socket.onclose = () => { state.textContent = "connecting"; setTimeout(connect, 500) }
}
document.getElementById("form").onsubmit = event => {
  event.preventDefault()
  const input = document.getElementById("text")
  if (!input.value) return
  if (socket.readyState === WebSocket.OPEN) socket.send(input.value)
  else unsent.push(input.value)
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
        async for message in chats.listen(chat, user):
            await socket.send_json(message._asdict())

    async def receive() -> None:
        while True:
            text = await socket.receive_text()
            await chats.send(chat, user, text[:LONGEST])

    tasks = [asyncio.create_task(send()), asyncio.create_task(receive())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, WebSocketDisconnect):
                await task


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    async with await shardkit.aconnect() as kit:
        app.state.chats = kit.chats(component=COMPONENT)
        yield


app = Starlette(
    routes=[Route("/", page), WebSocketRoute("/ws/{chat}/{user}", talk)], lifespan=_lifespan
)
