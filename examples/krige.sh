#!/usr/bin/env bash
# From a table of places to a map on the command line: pip install "gigagp[geo,plot]"
# CSV, GeoPackage, GeoJSON and GeoParquet do; map.tif has the bands mean and std, and map.png is the picture.
gigagp krige stations.csv --value zinc --crs EPSG:28992 --cell 200 --out map.tif --folds 3 --quiet
