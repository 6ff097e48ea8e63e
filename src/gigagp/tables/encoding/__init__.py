"""Columns of text, categories, dates and missing cells as numbers, by an encoder that is part of a fitted model."""

from gigagp.tables.encoding.encoder import Encode, Panel, TableEncoder, panel_places
from gigagp.tables.encoding.model_inputs import (
    encoded_validation,
    fitted_encoder,
    model_inputs,
    points_to_predict,
    refuse_before_fit,
    refuse_streams,
    scaled_inputs,
)

__all__ = [
    "Encode",
    "Panel",
    "TableEncoder",
    "encoded_validation",
    "fitted_encoder",
    "model_inputs",
    "panel_places",
    "points_to_predict",
    "refuse_before_fit",
    "refuse_streams",
    "scaled_inputs",
]
