"""The columnar core: when did each key first reach what each operation needs, looked up for all operations at once."""
