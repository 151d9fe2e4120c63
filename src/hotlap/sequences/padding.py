"""Collate function for samples of different lengths: pads to the longest, or to a bucket."""

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.errors import UsageError
from hotlap.sequences.lengths import bucket

Field = str | int


def pad(
    values: Mapping[Field, float] | float,
    *,
    to: Sequence[int] = (),
    dim: int = 0,
    lengths: bool | str = False,
    mask: bool | str = False,
) -> "Pad":
    """Return a `Task.collate` that pads samples of different lengths.

    Args:
        values: name (of a dict) or position (of a tuple) of each field that is padded -> what it is
            padded with, as `{"input_ids": 0, "labels": -100}`; a number alone where a sample is one
            tensor. Other fields are collated as torch does by default.
        to: bucket lengths: a batch is padded to the first that its longest sample fits into. Few
            of them are few shapes for `compile` and graphs. Padded to the longest if empty.
        dim: the dimension of a sample's field that has different lengths.
        lengths: add the lengths of the first padded field, int64, shape (samples,); in a dict
            under this name, or `lengths`; behind the other fields of a tuple.
        mask: add what is True where the first padded field is no padding, bool, shape
            (samples, padded); in a dict under this name, or `mask`; last in a tuple.

    Raises:
        UsageError: a value is not allowed; the message says what is.

    >>> import torch
    >>> pad({"ids": 0})([{"ids": [1, 2, 3], "label": 1}, {"ids": [4], "label": 0}])
    {'ids': tensor([[1, 2, 3],
            [4, 0, 0]]), 'label': tensor([1, 0])}
    """
    return Pad(values, to=to, dim=dim, lengths=lengths, mask=mask)


class Pad:
    """What `pad` returns; see there."""

    def __init__(
        self,
        values: Mapping[Field, float] | float,
        *,
        to: Sequence[int] = (),
        dim: int = 0,
        lengths: bool | str = False,
        mask: bool | str = False,
    ) -> None:
        self.is_bare = not isinstance(values, Mapping)
        """True if a sample is one tensor."""
        self.values: dict[Any, float] = {0: values} if self.is_bare else dict(values)  # pyright: ignore
        self.to, self.dim = tuple(to), dim
        self.lengths = "lengths" if lengths is True else lengths
        self.mask = "mask" if mask is True else mask
        self._check()

    def __repr__(self) -> str:
        return f"pad({self.values}, to={self.to}, dim={self.dim})"

    def _check(self) -> None:
        if not self.values:
            raise UsageError(
                "hotlap.pad() was given no field to pad. Pass one or more with their padding "
                "values, as in hotlap.pad({'input_ids': 0})."
            )
        for field, value in self.values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(
                    f"the padding value of field {field!r} is {value!r}, which is of type "
                    f"{type(value).__name__}. Expected: a number, such as 0."
                )
        ascending = list(self.to) == sorted(set(self.to))
        if not ascending or any(type(length) is not int or length < 1 for length in self.to):
            raise UsageError(
                f"hotlap.pad(to={list(self.to)}) is not valid. Expected: the lengths to pad to, as "
                "strictly increasing integers of 1 or more."
            )
        if type(self.dim) is not int or self.dim < 0:
            raise UsageError(
                f"hotlap.pad(dim={self.dim!r}) is not valid. Expected: an integer of 0 or more."
            )

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of these samples."""
        return self._pad(samples, None)[0]

    def pad_to(self, samples: Sequence[Any], length: int) -> tuple[Any, Any]:
        """Return the batch padded to `length`, whatever its longest sample, and its lengths.

        The lengths are those of each padded field, int64, shape (samples, fields). `cut` makes of
        both what a call would have given.
        """
        return self._pad(samples, length)

    def cut(self, wide: tuple[Any, Any]) -> Any:
        """Return the batch of which `wide` is the wide form, contiguous."""
        batch, lengths = wide
        ends = [self.target(longest) for longest in lengths.amax(dim=0).tolist()]

        def narrow(field: Any, end: int, dim: int) -> None:
            fields[field] = fields[field].narrow(dim, 0, end).contiguous()

        if self.is_bare and not (self.lengths or self.mask):
            return batch.narrow(self.dim + 1, 0, ends[0]).contiguous()
        fields: Any = dict(batch) if isinstance(batch, Mapping) else list(batch)
        for field, end in zip(self.values, ends, strict=True):
            narrow(field, end, self.dim + 1)
        if self.mask:
            narrow(self.mask if isinstance(fields, dict) else -1, ends[0], 1)
        return fields

    def join(self, parts: Sequence[Any]) -> Any:
        """Return the batch of all samples of some batches, in their order, as a call gives it.

        Args:
            parts: batches of this function; of tensors alone, with the same fields.
        """
        import torch

        if isinstance(parts[0], torch.Tensor):
            return torch.cat(_widen(parts, self.dim + 1, self.values[0]))
        first, values = parts[0], {**self.values}
        is_dict = isinstance(first, Mapping)
        if self.mask:
            values[self.mask if is_dict else len(first) - 1] = False
        fields = {
            field: [part[field] for part in parts]
            for field in (first if is_dict else range(len(first)))
        }
        joined = {}
        for field, column in fields.items():
            if field in values:
                # The mask has no dimensions but these two.
                dim = self.dim + 1 if field in self.values else 1
                column = _widen(column, dim, values[field])
            joined[field] = torch.cat(column)
        return joined if is_dict else list(joined.values())

    def target(self, longest: int) -> int:
        """Return what a batch with this longest sample is padded to, see `lengths.bucket`."""
        return bucket(longest, self.to)

    def _pad(self, samples: Sequence[Any], wide: int | None) -> tuple[Any, Any]:
        import torch

        first = samples[0]
        is_dict = isinstance(first, Mapping)
        self._check_fields(first)
        fields: Any = {} if is_dict else []
        every = {}
        for field in self._names(first):
            column = list(samples) if self.is_bare else [sample[field] for sample in samples]
            if field in self.values:
                value, every[field] = self._column(field, column, wide)
            else:
                value = _stack(field, column)
            if is_dict:
                fields[field] = value
            else:
                fields.append(value)
        lengths = torch.stack([every[field] for field in self.values], dim=1)
        self._add(fields, lengths[:, 0].contiguous(), wide)
        if self.is_bare:
            return (fields if len(fields) > 1 else fields[0]), lengths
        return fields, lengths

    def _names(self, sample: Any) -> Any:
        if self.is_bare:
            return (0,)
        return sample.keys() if isinstance(sample, Mapping) else range(len(sample))

    def _check_fields(self, sample: Any) -> None:
        if self.is_bare:
            return
        if not isinstance(sample, Mapping | tuple | list):
            raise UsageError(
                f"hotlap.pad() was given fields, but a sample is a single {type(sample).__name__}. "
                "Pass only the padding value, as in hotlap.pad(0)."
            )
        names = list(self._names(sample))
        absent = [field for field in self.values if field not in names]
        if absent:
            raise UsageError(
                f"hotlap.pad() was given the field {absent[0]!r}, which samples do not have. "
                f"Expected: {', '.join(map(repr, names))}."
            )

    def _add(self, fields: Any, lengths: Any, wide: int | None) -> None:
        import torch

        added = {}
        if self.lengths:
            added[self.lengths] = lengths
        if self.mask:
            end = self.target(int(lengths.max())) if wide is None else wide
            added[self.mask] = torch.arange(end) < lengths[:, None]
        if isinstance(fields, list):
            fields.extend(added.values())
            return
        taken = [name for name in added if name in fields]
        if taken:
            raise UsageError(
                f"hotlap.pad() would add a field {taken[0]!r}, and the samples already have one. "
                "Use another name for the new one, as in hotlap.pad(..., lengths='n', mask='real')."
            )
        fields.update(added)

    def _column(self, field: Field, column: Sequence[Any], wide: int | None) -> tuple[Any, Any]:
        import torch
        from torch.nn.functional import pad as extend
        from torch.nn.utils.rnn import pad_sequence

        rows = [torch.as_tensor(row) for row in column]
        if any(row.dim() <= self.dim for row in rows):
            shape = tuple(min(rows, key=torch.Tensor.dim).shape)
            do = f"Pass a dim below {len(shape)}" if shape else "Pad other fields only"
            raise UsageError(
                f"hotlap.pad(dim={self.dim}) cannot pad field {field!r}, which has shape {shape} "
                f"in a sample. Expected: {self.dim + 1} dimensions or more. {do}."
            )
        # What an empty list holds is not known, torch says float.
        kinds = {row.dtype for row in rows if row.numel()} or {rows[0].dtype}
        if len(kinds) > 1:
            raise UsageError(
                f"field {field!r} is {' in one sample and '.join(sorted(map(str, kinds)))} in "
                "another. Expected: one dtype. Convert the field in the dataset."
            )
        kind = kinds.pop()
        rows = [row.to(kind).movedim(self.dim, 0) for row in rows]
        if len({row.shape[1:] for row in rows}) > 1:
            shapes = {row.shape[1:]: tuple(row.movedim(0, self.dim).shape) for row in rows}
            one, other, *_ = shapes.values()
            raise UsageError(
                f"field {field!r} has shape {one} in one sample and {other} in another, which "
                f"differ in another dimension than dim={self.dim}. Expected: shapes that differ in "
                "that dimension only. Pass the right dim to hotlap.pad, or make the other "
                "dimensions equal in the dataset."
            )
        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        end = self.target(longest) if wide is None else wide
        if longest > end:
            raise UsageError(
                f"a sample has {longest} tokens in field {field!r}, but the task's `lengths` say "
                f"that no sample has more than {end}. Set `lengths` in the task to the length of "
                "the longest field of each sample."
            )
        value = self.values[field]
        padded = pad_sequence(rows, batch_first=True, padding_value=value)
        if end > longest:
            padded = extend(padded, (0, 0) * (padded.dim() - 2) + (0, end - longest), value=value)
        return padded.movedim(1, self.dim + 1).contiguous(), lengths


def _widen(column: Sequence[Any], dim: int, value: float) -> list[Any]:
    """Pad tensors in one dimension to the longest of them."""
    import torch

    longest, wide = max(part.shape[dim] for part in column), []
    for part in column:
        shape = list(part.shape)
        shape[dim] = longest - shape[dim]
        wide.append(torch.cat([part, part.new_full(shape, value)], dim))
    return wide


def _stack(field: Field, column: list[Any]) -> Any:
    from torch.utils.data import default_collate

    try:
        return default_collate(column)
    except RuntimeError as error:
        raise UsageError(
            f"field {field!r} cannot be stacked: {error}. Expected: the same shape in all samples. "
            f"To pad it, add it to the fields of hotlap.pad, as in hotlap.pad({{{field!r}: 0}})."
        ) from error
