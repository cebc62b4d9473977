from ._prediction import error_rate as error_rate, predict as predict
