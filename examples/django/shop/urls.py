from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/<str:customer>", views.order),
    path("tasks/<str:id>", views.show_task),
]
