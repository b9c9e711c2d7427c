{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
          merge_exclude_columns=['first_day'], on_schema_change='append_new_columns') }}
select id, customer, day, amount, updated_at, day as first_day
{% if var('second', false) %}, upper(customer) as shouted {% endif %}
from {{ ref('recent') }}
{% if is_incremental() %}
where updated_at > (select max(updated_at) from {{ this }})
{% endif %}
