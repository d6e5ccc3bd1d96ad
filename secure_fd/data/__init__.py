"""Sources of images, and their partition among clients."""
