"""Addresses of the project that the test has made by `django-admin startproject`: the administration, and one of each kind."""

import os
import time

from django.conf import settings
from django.contrib import admin
from django.core.files.storage import default_storage
from django.http import HttpResponse, StreamingHttpResponse
from django.middleware.csrf import get_token
from django.urls import path


def index(request):
    visits = request.session.get("visits", 0) + 1
    request.session["visits"] = visits
    host, scheme = request.get_host(), request.scheme
    return HttpResponse(f"visit {visits} of {scheme}://{host}{request.get_full_path()}")


def form(request):
    if request.method == "POST":
        return HttpResponse(f"thank you, {request.POST['name']}", status=201)
    return HttpResponse(f'<input name="csrfmiddlewaretoken" value="{get_token(request)}">')


def upload(request):
    file = request.FILES["file"]
    # The same file comes again from the next server.
    if not default_storage.exists(file.name):
        default_storage.save(file.name, file)
    return HttpResponse(f"{file.name} {file.size}", status=201)


def stream(request):
    def parts():
        yield "begun\n"
        while not os.path.exists(settings.BASE_DIR / "go"):
            time.sleep(0.01)
        yield "ended\n"

    response = StreamingHttpResponse(parts(), content_type="text/plain")
    response["X-Accel-Buffering"] = "no"
    return response


def broken(request):
    raise RuntimeError("broken")


urlpatterns = [
    path("", index),
    path("form/", form),
    path("upload/", upload),
    path("stream/", stream),
    path("broken/", broken),
    path("admin/", admin.site.urls),
]
