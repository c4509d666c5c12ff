"""gunicorn's settings for the Flask application.

Each process has its own kit, which its threads share. The application is made in each process, not
before the fork: a kit may be forked, but nothing is saved by it here.
"""

import os

wsgi_app = "examples.web.flask_app:make_app()"
bind = os.environ.get("BIND", "127.0.0.1:8000")
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
worker_class = "gthread"
threads = 8
graceful_timeout = 25  # seconds for requests in progress, on SIGTERM
timeout = 30
accesslog = "-"
