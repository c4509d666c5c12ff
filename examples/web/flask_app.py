"""Users' names with Flask: a blocking kit that each worker shares, times by rule, probes.

::

    pip install "shardkit[local,metrics]" flask
    flask --app examples.web.flask_app:make_app run
    curl -X PUT localhost:5000/users/7?name=Ann
    curl localhost:5000/users/7
"""

from typing import Any

from flask import Flask, abort, request
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from examples.web import CONFIG, USERS
from shardkit.integrations.wsgi import MaintenanceWSGI, TimingWSGI, init_flask
from shardkit.kit.kit import Where
from shardkit.network import health


def make_app(where: Where = CONFIG) -> Flask:
    """Return the application."""
    app = Flask(__name__)
    kit = init_flask(app, where)
    served = MaintenanceWSGI(app.wsgi_app, kit, component="hits", part="users")
    timed = TimingWSGI(served, kit, component="hits")
    probes: Any = {"/health": health.wsgi(kit)}  # /health/live and /health/ready
    app.wsgi_app = DispatcherMiddleware(timed, probes)  # type: ignore[method-assign]
    users = kit.hash("users", component="timelines", total=USERS)
    hits = kit.counters(component="hits")
    letters = kit.queues(component="timelines")

    @app.put("/users/<int:number>")
    def rename(number: int) -> str:
        users.hset(str(number), request.args["name"])
        letters.enqueue("mail", "write", [str(number)])  # see letters.py
        return ""

    @app.get("/users/<int:number>")
    def user(number: int) -> dict[str, str]:
        name = users.hget(str(number))
        if name is None:
            abort(404)
        hits.hit(f"user:{number}")
        return {"name": name.decode()}

    return app
