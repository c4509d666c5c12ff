"""Users' names with Django, on one page: its cache and sessions over the shards of a component.

::

    pip install "shardkit[local,django]"
    python -m examples.web.django_site runserver
    curl -c jar "localhost:8000/log-in?name=Ann"
    curl -b jar localhost:8000/
"""

import sys

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.urls import path

from examples.web import CONFIG


def log_in(request: HttpRequest) -> HttpResponse:
    """Keep a name in the session, which is on the shard of its key."""
    request.session["name"] = request.GET["name"]
    return HttpResponse("welcome")


def front(request: HttpRequest) -> HttpResponse:
    """Greet whoever is logged in, and count them in the cache."""
    name = request.session.get("name", "stranger")
    cache.add(f"visits:{name}", 0, timeout=86_400)
    return HttpResponse(f"{name}, visit {cache.incr(f'visits:{name}')}")


urlpatterns = [path("log-in", log_in), path("", front)]

SETTINGS = {
    "ROOT_URLCONF": __name__,
    "ALLOWED_HOSTS": ["*"],
    "SECRET_KEY": "of this example",
    "MIDDLEWARE": ["django.contrib.sessions.middleware.SessionMiddleware"],
    "SESSION_ENGINE": "shardkit.integrations.django.sessions",
    "CACHES": {
        "default": {
            "BACKEND": "shardkit.integrations.django.cache.ShardKitCache",
            "LOCATION": "timelines",
            "OPTIONS": {"TOPOLOGY": CONFIG},
        }
    },
}

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    settings.configure(DEBUG=True, **SETTINGS)
    execute_from_command_line(sys.argv)
