"""Users' names with Flask: a blocking kit that each worker shares, times by rule, maintenance.

::

    pip install "shardkit[local,metrics]" flask
    flask --app examples.web.flask_app:make_app run
    curl -X PUT localhost:5000/users/7?name=Ann
    curl localhost:5000/users/7
"""

from flask import Flask, abort, request

from examples.web import CONFIG, USERS
from shardkit.integrations.wsgi import MaintenanceWSGI, TimingWSGI, init_flask
from shardkit.kit.kit import Where


def make_app(where: Where = CONFIG) -> Flask:
    """Return the application."""
    app = Flask(__name__)
    kit = init_flask(app, where)
    served = MaintenanceWSGI(app.wsgi_app, kit, component="hits", part="users")
    app.wsgi_app = TimingWSGI(served, kit, component="hits")  # type: ignore[method-assign]
    users = kit.hash("users", component="timelines", total=USERS)
    hits = kit.counters(component="hits")

    @app.put("/users/<int:number>")
    def rename(number: int) -> str:
        users.hset(str(number), request.args["name"])
        return ""

    @app.get("/users/<int:number>")
    def user(number: int) -> dict[str, str]:
        name = users.hget(str(number))
        if name is None:
            abort(404)
        hits.hit(f"user:{number}")
        return {"name": name.decode()}

    return app
