"""Checks of loss, model and optimizer before they train, and guards that put model state back."""
