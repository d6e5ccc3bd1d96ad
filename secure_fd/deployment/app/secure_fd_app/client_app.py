"""The ClientApp of the installed package."""

from secure_fd.deployment.client_app import app

__all__ = ["app"]
