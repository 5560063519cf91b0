"""The whole main job on real data, from writers to a downstream that is compared row by row."""
